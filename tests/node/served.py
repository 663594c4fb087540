"""Serves the reference server with its diagnostic tool: `python served.py --notes FILE --port N`."""

import argparse
from pathlib import Path

from dovetail.reference import create_server

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--notes", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    create_server(diagnostics=True, notes=options.notes).run(transport="http", port=options.port)
