"""Dovetail with all that is mounted: a proxy for each of BENCH_SECONDS, which its backend takes for a list; without
them the server of dovetail_http.py, or a proxy in front of BENCH_BACKEND.
"""

import os
import sys

from dovetail import Proxy, Server

server = Server("gateway", version="1.0.0")
backend = os.environ.get("BENCH_BACKEND", "")

if "BENCH_SECONDS" in os.environ:
    for number, seconds in enumerate(os.environ["BENCH_SECONDS"].split()):
        server.mount(Proxy(backend, name=f"b{number}", headers={"x-seconds": seconds}), namespace=f"b{number}")
elif backend:
    server.mount(Proxy(backend, name="b0"), namespace="b0")
else:
    from benchmarks.servers.dovetail_http import server as child

    server.mount(child, namespace="b0")

if __name__ == "__main__":
    server.run("http", port=int(sys.argv[1]))
