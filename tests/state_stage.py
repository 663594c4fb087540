"""Callers of a server with state that are known, have a session or are not known; and the stores that it can have."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import stores
from dovetail import HttpApp
from http_wire import HttpWire, text_of
from remote_state import RemoteState

KINDS = ("memory", "sqlite", "redis")


def identify(scope: Any) -> str | None:
    """The caller that a host would have authenticated."""
    return next((value.decode() for name, value in scope["headers"] if name == b"x-user"), None)


def known(app: HttpApp, user: str) -> HttpWire:
    """A caller of 2026-07-28 that `identify` knows."""
    return HttpWire(app, headers={"x-user": user})


async def said(wire: HttpWire, name: str, **arguments: Any) -> str:
    """What a tool has said, also in an error."""
    return text_of((await wire.call(name, arguments)).answer)


class WatchedState(RemoteState):
    """Remembers what was put, and for how long."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.ttls: dict[str, float] = {}

    async def put(self, key: str, value: bytes, *, ttl: float, if_version: int | None = None) -> int:
        self.ttls[key] = ttl
        return await super().put(key, value, ttl=ttl, if_version=if_version)


_numbers = itertools.count(1)


class Stores:
    """URLs of empty stores."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._redis: stores.StoreServer | None = None

    def url(self, kind: str) -> str:
        number = next(_numbers)
        if kind == "sqlite":
            return f"sqlite://{self._folder.as_posix()}/{number}.db"
        if kind == "memory":
            return "memory:"
        stores.demand()
        self._redis = self._redis or stores.StoreServer(self._folder / "redis")
        return f"{self._redis.url}?prefix=store-{number}"

    def close(self) -> None:
        if self._redis is not None:
            self._redis.kill()


def open_stores(folder: Path) -> Iterator[Stores]:
    opened = Stores(folder)
    yield opened
    opened.close()
