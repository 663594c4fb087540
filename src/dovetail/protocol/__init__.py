"""The pure floor: everything that is known about MCP, every revision, without I/O, clock or randomness."""
