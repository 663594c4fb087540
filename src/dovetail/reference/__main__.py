"""`python -m dovetail.reference`: the reference server on stdio; `--diagnostics` adds `slow_operation`."""

import sys

from dovetail.reference import create_server

if __name__ == "__main__":
    if sys.stdin.isatty():
        hint = "The reference server speaks MCP on standard input and output: type JSON-RPC lines, end with Ctrl-D."
        sys.stderr.write(hint + "\n")
    create_server(diagnostics="--diagnostics" in sys.argv[1:]).run()
