"""The `dovetail` command. Its parts are loaded when they are needed, so that `--help` is quick."""

from typing import TYPE_CHECKING

from dovetail.late import late

if TYPE_CHECKING:
    from dovetail.cli import arguments as arguments
    from dovetail.cli import bench as bench
    from dovetail.cli import call as call
    from dovetail.cli import calling as calling
    from dovetail.cli import catalogue as catalogue
    from dovetail.cli import complete as complete
    from dovetail.cli import dev as dev
    from dovetail.cli import doctor as doctor
    from dovetail.cli import exits as exits
    from dovetail.cli import form as form
    from dovetail.cli import inspect as inspect
    from dovetail.cli import inspection as inspection
    from dovetail.cli import install as install
    from dovetail.cli import lint as lint
    from dovetail.cli import list as list
    from dovetail.cli import listed as listed
    from dovetail.cli import loading as loading
    from dovetail.cli import new as new
    from dovetail.cli import prompt as prompt
    from dovetail.cli import read as read
    from dovetail.cli import run as run
    from dovetail.cli import showing as showing
    from dovetail.cli import signing_in as signing_in
    from dovetail.cli import started as started
    from dovetail.cli import tab as tab
    from dovetail.cli import talking as talking

__getattr__ = late(
    __name__,
    "arguments",
    "bench",
    "call",
    "calling",
    "catalogue",
    "complete",
    "dev",
    "doctor",
    "exits",
    "form",
    "inspect",
    "inspection",
    "install",
    "lint",
    "list",
    "listed",
    "loading",
    "new",
    "prompt",
    "read",
    "run",
    "showing",
    "signing_in",
    "started",
    "tab",
    "talking",
)
