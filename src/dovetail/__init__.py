"""Dovetail: plain Python functions, served to every MCP client."""
