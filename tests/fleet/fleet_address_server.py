"""A server that counts calls by address: `fleet_address_server.py --port N`. The rest comes from the environment."""

import argparse

from dovetail import Server

server = Server("addresses", version="1.0.0", rate_limit="2/day per address")


@server.tool
async def work() -> str:
    return "done"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    server.run(transport="http", port=parser.parse_args().port)
