"""HTTP/1.1 of `run("http")`: connections on asyncio, parsed by httptools, served as ASGI."""
