"""Dovetail's gateway in front of the backend that BENCH_BACKEND names."""

import os
import sys

from dovetail import Proxy

server = Proxy(os.environ["BENCH_BACKEND"], name="backend")

if __name__ == "__main__":
    server.run("http", port=int(sys.argv[1]))
else:
    app = server.asgi()
