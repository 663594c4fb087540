"""How a server gets into the configuration of a host: where that is, what it says there, and how it is written."""
