"""A server that wants a proof for every request: `fleet_dpop_server.py --port N`.

The proof has to hold a nonce. DPOP_CLAIMS are those of the one token that is known, as JSON. All workers are one server
to the client, under a URL that is none of theirs.
"""

import argparse
import json
import os

from dovetail import Server
from dovetail.auth import Auth, Principal

TOKEN, URL = "a-bound-token", "https://notes.example.com/mcp"


async def verify(token: str) -> Principal | None:
    claims = json.loads(os.environ["DPOP_CLAIMS"])
    return Principal(subject="ada", claims=claims) if token == TOKEN else None


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    auth = Auth(verify, public_url=URL, dpop="required", dpop_nonces=True)
    server = Server("proved", version="1.0.0", auth=auth)
    server.add_tool(lambda: "gold", name="peek", description="Look.")
    server.run(transport="http", port=parser.parse_args().port)
