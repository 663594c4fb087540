"""HTTP/1.1 of `run("http")`: connections on asyncio, httptools as the parser, each request served as ASGI."""
