"""OpenAPI: the operations of an HTTP API as the tools of a server."""
