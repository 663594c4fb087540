"""A gateway: `gateway_program.py '{"namespace": {"target": …, "revision": …}}'` serves stdio, with `--port N` HTTP.

A target is what `Proxy` takes; its namespace may be empty. What the gateway says is judged; if anything was malformed,
that is on stderr, and the exit code is 1.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from dovetail import Proxy, Server
from official import judge_this_process

ALLOWED = ["sampling", "roots"]


def make_gateway(mounts: dict[str, dict[str, Any]], **options: Any) -> Server:
    server = Server("gateway", version="1.0.0", **options)
    for namespace, mount in mounts.items():
        pinned = {"protocol_version": mount["revision"]} if mount.get("revision") else {}
        proxy = Proxy(mount["target"], name=namespace or "backend", allow=ALLOWED, **pinned)
        server.mount(proxy, namespace=namespace or None)
        if hidden := mount.get("hidden"):
            server.disable(names=hidden)
    return server


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("mounts", type=json.loads)
    parser.add_argument("--port", type=int)
    given = parser.parse_args()
    watch = judge_this_process()
    server = make_gateway(given.mounts)
    if given.port is None:
        server.run()
    else:
        server.run(transport="http", port=given.port, drain_timeout=1.0)
    return 1 if watch is not None and any(witness.problems for witness in watch) else 0


if __name__ == "__main__":
    sys.exit(main())
