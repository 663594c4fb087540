"""Serves the reference server with its diagnostic tool: `python served.py --notes FILE --port N`.

What it says is judged; if anything was malformed, that is on stderr, and the exit code is 1.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from dovetail.reference import create_server
from official import judge_this_process

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--notes", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    watch = judge_this_process()
    create_server(diagnostics=True, notes=options.notes).run(transport="http", port=options.port)
    sys.exit(1 if watch is not None and any(witness.problems for witness in watch) else 0)
