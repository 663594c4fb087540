"""`python -m dovetail.cli.developing.child`: serves one version of a program, until it is told to end.

stdin is not the program's: its first line says what to serve, the next that it is the turn of this version, and its end
is the end, also where whoever wrote to it was killed. stdout tells how far it is, in the words of `serving_child`. What
the program itself prints goes to stderr.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from socket import socket as Socket
from typing import Any, BinaryIO

import msgspec

import dovetail
from dovetail.cli.developing.serving_child import LET_GO, READY, SERVE, SERVING
from dovetail.cli.target import load_target
from dovetail.cli.terminal import plain, tell
from dovetail.cli.tracebacks import as_told
from dovetail.engine.streams import LIST_KINDS, Change
from dovetail.errors import SetupError
from dovetail.server import Server
from dovetail.transports.handover import Handover, handed

CANT_START = 1

Say = Callable[[bytes], None]


class Plan(msgspec.Struct, frozen=True):
    """What the process is to do."""

    target: str
    options: dict[str, Any]  # of `Server.run`
    sockets: list[int]  # descriptors; none where they can't be inherited


def main() -> None:
    orders, say = _take_over_pipes()
    plan = msgspec.json.decode(orders.readline(), type=Plan)
    its_turn: Future[None] = Future()
    its_turn.set_running_or_notify_cancel()  # so that nobody can cancel it
    threading.Thread(target=_follow, args=(orders, its_turn), name="dovetail-orders", daemon=True).start()
    try:
        server = load_target(plan.target)
        if server.engine.masks_errors is None:  # it does not say so itself
            server.engine.masks_errors = False
        routes = dovetail.Console(server).routes()
        with handed(_handover(server, [Socket(fileno=each) for each in plan.sockets], its_turn, say)):
            server.run("http", **{**plan.options, "routes": routes})
    except SetupError as failure:
        tell(plain(f"Error: {failure}"), fg="red")
        sys.exit(CANT_START)
    except (Exception, SystemExit) as failure:
        tell(plain(as_told(failure)), fg="red")
        sys.exit(CANT_START)


def _handover(server: Server, sockets: list[Socket], its_turn: "Future[None]", say: Say) -> Handover:
    async def turn() -> None:
        say(READY)
        await asyncio.wrap_future(its_turn)
        for kind in LIST_KINDS:  # sessions hear of it when they are back; before it accepts there is nobody else
            server.engine.publish(Change(kind))

    return Handover(sockets, turn, lambda: say(SERVING), lambda: say(LET_GO))


def _take_over_pipes() -> tuple[BinaryIO, Say]:
    orders = os.fdopen(os.dup(0), "rb")
    words = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)

    def say(word: bytes) -> None:
        with suppress(OSError):  # nobody is there to hear it
            os.write(words, word)

    return orders, say


def _follow(orders: BinaryIO, its_turn: "Future[None]") -> None:
    for order in orders:
        if order == SERVE and not its_turn.done():
            its_turn.set_result(None)
    if os.name == "posix":
        os.kill(os.getpid(), signal.SIGTERM)  # to the process, so that it wakes its main thread
    else:
        signal.raise_signal(signal.SIGINT)


if __name__ == "__main__":
    main()
