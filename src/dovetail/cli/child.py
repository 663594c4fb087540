"""`python -m dovetail.cli.child server.py`: `dovetail run server.py` over stdio, without the weight of a command line.

Commands start the programs that they talk to like this.
"""

import sys

from dovetail.cli.target import load_target
from dovetail.errors import SetupError

CANT_START = 2


def serve(target: str) -> None:
    try:
        server = load_target(target)
    except SetupError as failure:
        sys.stderr.write(f"Error: {failure}\n")
        sys.exit(CANT_START)
    server.run("stdio")


if __name__ == "__main__":
    serve(sys.argv[1])
