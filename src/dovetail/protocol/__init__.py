"""The MCP protocol in all its revisions: pure, without I/O, clock or randomness."""
