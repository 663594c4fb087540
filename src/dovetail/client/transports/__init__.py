"""Transports of a client: in process, stdio, Streamable HTTP and HTTP+SSE."""
