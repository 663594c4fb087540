"""The `dovetail` command. Its modules are loaded when they are first used, so that `--help` is quick."""

from typing import TYPE_CHECKING

from dovetail._lazy import lazy_modules

if TYPE_CHECKING:
    from dovetail.cli import ask as ask
    from dovetail.cli import bench as bench
    from dovetail.cli import commands as commands
    from dovetail.cli import connect as connect
    from dovetail.cli import dev as dev
    from dovetail.cli import doctor as doctor
    from dovetail.cli import gateway as gateway
    from dovetail.cli import given_arguments as given_arguments
    from dovetail.cli import inspect as inspect
    from dovetail.cli import install as install
    from dovetail.cli import lint as lint
    from dovetail.cli import migrate as migrate
    from dovetail.cli import moved_imports as moved_imports
    from dovetail.cli import new as new
    from dovetail.cli import pack as pack
    from dovetail.cli import run as run
    from dovetail.cli import show as show
    from dovetail.cli import task as task

__getattr__ = lazy_modules(
    __name__, "ask", "bench", "commands", "connect", "dev", "doctor", "gateway", "given_arguments", "inspect",
    "install", "lint", "migrate", "moved_imports", "new", "pack", "run", "show", "task",
)  # fmt: skip
