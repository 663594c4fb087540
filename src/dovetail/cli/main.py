"""The `dovetail` command: the words of a command line come in, one of its commands is run.

Exit codes: 0 fine, 1 it failed, 2 the command line is wrong.
"""

import click

from dovetail import __version__
from dovetail.cli.run import run


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="dovetail", message="%(prog)s %(version)s")
def main() -> None:
    """Plain Python functions, served to every MCP client."""


main.add_command(run)
