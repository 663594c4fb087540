"""`python -m dovetail.cli.developing.child`: serves one version of a program, until it is told to end.

stdin is not the program's: its first line says what to serve, each later one that clients are to be told of changes,
and its end is the end, also where whoever wrote to it was killed. stdout says when all is ready. What the program
itself prints goes to stderr.
"""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from socket import socket as Socket
from typing import Any, BinaryIO

import msgspec

import dovetail
from dovetail.cli.developing.serving_child import CHANGED, READY
from dovetail.cli.target import load_target
from dovetail.cli.terminal import plain, tell
from dovetail.engine.streams import LIST_KINDS, Change
from dovetail.errors import SetupError
from dovetail.server import Server
from dovetail.transports.handover import handed

CANT_START = 1
OURS = (str(Path(dovetail.__file__).parent), "<frozen ")


class Plan(msgspec.Struct, frozen=True):
    """What the process is to do."""

    target: str
    options: dict[str, Any]  # of `Server.run`
    sockets: list[int]  # descriptors; none where they can't be inherited


def main() -> None:
    orders, say_ready = _take_over_pipes()
    plan = msgspec.json.decode(orders.readline(), type=Plan)
    served: list[Server] = []
    threading.Thread(target=_follow, args=(orders, served), name="dovetail-orders", daemon=True).start()
    try:
        server = load_target(plan.target)
        served.append(server)
        routes = dovetail.Console(server).routes()
        with handed([Socket(fileno=each) for each in plan.sockets], say_ready):
            server.run("http", **{**plan.options, "routes": routes})
    except SetupError as failure:
        tell(plain(f"Error: {failure}"), fg="red")
        sys.exit(CANT_START)
    except (Exception, SystemExit) as failure:
        tell(plain(_told(failure)), fg="red")
        sys.exit(CANT_START)


def _take_over_pipes() -> tuple[BinaryIO, Callable[[], None]]:
    orders = os.fdopen(os.dup(0), "rb")
    ready = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)

    def say_ready() -> None:
        os.write(ready, READY)

    return orders, say_ready


def _follow(orders: BinaryIO, served: list[Server]) -> None:
    for order in orders:
        if order == CHANGED and served:
            for kind in LIST_KINDS:
                served[0].engine.publish(Change(kind))
    if os.name == "posix":
        os.kill(os.getpid(), signal.SIGTERM)  # to the process, so that it wakes its main thread
    else:
        signal.raise_signal(signal.SIGINT)


def _told(failure: BaseException) -> str:
    """As Python would tell it, without the way to the program's first line, which is ours."""
    trace = failure.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(OURS):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(failure), failure, trace)).rstrip()


if __name__ == "__main__":
    main()
