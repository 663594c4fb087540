"""Judges every message that a server in this process emits, over pipes and over HTTP, by the official schemas.

Tests use `watch(monkeypatch.setattr)`; a program that a test starts calls `judge_this_process()` before it serves, and
whoever started it looks for `COMPLAINT` in what it wrote to stderr.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import official
from dovetail.engine.connection import Connection
from http_judge import Patch, watch_http

COMPLAINT = "the official schema disagrees: "


class _WatchedPipe:
    """Hands everything on, and shows it to the witness."""

    def __init__(self, pipe, witness: official.Witness) -> None:
        self._pipe = pipe
        self._witness = witness
        self.drain = pipe.drain

    def write(self, message: bytes) -> None:
        self._witness.received(bytes(message))
        self._pipe.write(message)

    def __getattr__(self, name: str):
        return getattr(self._pipe, name)


class Watch:
    """The witnesses of everything since the watch began."""

    def __init__(self, patch: Patch) -> None:
        self._over_pipes = _watch_pipes(patch)
        self._over_http = watch_http(patch)

    def __iter__(self) -> Iterator[official.Witness]:
        yield from self._over_pipes
        yield from self._over_http


def _watch_pipes(patch: Patch) -> list[official.Witness]:
    witnesses: list[official.Witness] = []
    original_init, original_admit = Connection.__init__, Connection._admit

    def watched_init(self: Connection, engine, pipe, **options: Any) -> None:
        witness = official.Witness()
        witnesses.append(witness)
        self.witness = witness
        original_init(self, engine, _WatchedPipe(pipe, witness), **options)

    def watched_admit(self: Connection, *arguments: Any, **options: Any):
        call = original_admit(self, *arguments, **options)
        self.witness.admitted(call.exchange.request)
        return call

    patch(Connection, "__init__", watched_init)
    patch(Connection, "_admit", watched_admit)
    return witnesses


def judge_this_process() -> Watch | None:
    """From now on, and in every process forked from it; a problem is written to stderr at once. None: no schemas."""
    if not official.available():
        return None
    official.Witness.on_problem = _complain
    return Watch(setattr)


def _complain(problem: str) -> None:
    with contextlib.suppress(OSError):  # stderr may be closed
        os.write(2, f"{COMPLAINT}{problem}\n".encode(errors="backslashreplace"))
