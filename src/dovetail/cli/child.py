"""`python -m dovetail.cli.child server.py`: `dovetail run server.py` over stdio, without the weight of a command line.

Commands start the programs that they talk to like this.
"""

import sys

from dovetail.cli.target import BadTarget, load_target
from dovetail.cli.whereabouts import CANT_LOAD, NOT_THERE
from dovetail.errors import SetupError


def serve(target: str) -> None:
    try:
        load_target(target).run("stdio")
    except SetupError as failure:
        sys.stderr.write(f"Error: {failure}\n")
        sys.exit(NOT_THERE if isinstance(failure, BadTarget) else CANT_LOAD)


if __name__ == "__main__":
    serve(sys.argv[1])
