"""`python -m dovetail.reference` serves the reference server on stdio; `--diagnostics` adds `slow_operation`."""

import sys

from dovetail.reference import create_server

if __name__ == "__main__":
    create_server(diagnostics="--diagnostics" in sys.argv[1:]).run()
