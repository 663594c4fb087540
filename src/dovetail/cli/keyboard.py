"""Questions to the person at the terminal: words come in, what was typed goes out.

Meanwhile the loop goes on, so a server can report, and take its question back. Questions stand on stderr.
"""

import asyncio
import io
import os
import sys
import threading
from collections.abc import Callable
from typing import cast

from dovetail.cli.terminal import OpenQuestion, tell

LONGEST_LINE = 64 * 1024
YES, NO = ("y", "yes"), ("n", "no")


async def ask(words: str) -> str | None:
    """One line; None at the end of all input, which is Ctrl-D."""
    question, line = OpenQuestion(words), b""
    question.draw()
    try:
        line = await _line()
    finally:
        question.close(is_answered=line.endswith(b"\n"))
    return line.decode(errors="replace").strip() if line else None


async def confirm(words: str, *, default: bool = False) -> bool | None:
    """Yes or no, asked until it is one of them; None for Ctrl-D."""
    while True:
        given = await ask(f"{words} [{'Y/n' if default else 'y/N'}] ")
        if given is None:
            return None
        if not given:
            return default
        if given.lower() in YES + NO:
            return given.lower() in YES
        tell("Please say y or n.")


async def _line() -> bytes:
    """The terminal itself keeps the line until it is finished."""
    loop = asyncio.get_running_loop()
    came: asyncio.Future[bytes] = loop.create_future()

    def take() -> None:
        if not came.done():
            came.set_result(os.read(sys.stdin.fileno(), LONGEST_LINE))

    try:
        loop.add_reader(sys.stdin.fileno(), take)
    except NotImplementedError:  # on Windows
        return await _line_of_thread(came, loop.call_soon_threadsafe)
    try:
        return await came
    finally:
        loop.remove_reader(sys.stdin.fileno())


async def _line_of_thread(came: "asyncio.Future[bytes]", soon: Callable[..., object]) -> bytes:
    console = cast(io.BufferedReader, sys.stdin.buffer).raw  # UTF-8, and without a lock that the end would wait for

    def take() -> None:
        soon(settle, console.read(LONGEST_LINE) or b"")

    def settle(line: bytes) -> None:
        if not came.done():
            came.set_result(line)

    threading.Thread(target=take, daemon=True).start()
    return await came
