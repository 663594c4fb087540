"""The server of the tests of sign-in over a fleet: `fleet_sign_in_server.py --port N`.

Users sign in at the identity provider PROVIDER, with the row SIGN_IN. Workers and tests share files in FLEET_FOLDER:
`ahead` says how far all clocks are ahead; `writes` gets a line for each write of the authorization server to the store;
`doom` names one of them, as "after put upstream", and the worker that makes it dies there by SIGKILL.
"""

import argparse
import hashlib
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from dovetail import Context, Server
from dovetail.authserver import AuthServer, SignIn
from dovetail.state.base import open_state

NAME, ISSUER, RESOURCE = "fleet-sign-in", "https://login.example.com", "https://notes.example.com/mcp"
WRITES = ("put", "touch", "delete", "claim", "add")
FAMILIES = ("authserver", "granted")  # the records of authorization servers
NGINX = "127.0.0.1"


class SharedClock:
    """A clock that tests can advance for all processes."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "ahead"

    @property
    def _ahead(self) -> float:
        return float(self._file.read_text()) if self._file.exists() else 0.0

    def advance(self, seconds: float) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(str(self._ahead + seconds))
        fresh.replace(self._file)

    def __call__(self) -> float:
        return time.time() + self._ahead


class DeadlyState:
    """A state backend that notes what is written, and kills its process at a write that was named."""

    def __init__(self, state: Any, folder: Path) -> None:
        self._state = state
        self._writes, self._doom = folder / "writes", folder / "doom"

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._state, name)
        return partial(self._write, name, found) if name in WRITES else found

    async def _write(self, name: str, write: Callable[..., Awaitable[Any]], key: str, *given: Any, **more: Any) -> Any:
        family, _, rest = key.partition("/")
        if family not in FAMILIES:
            return await write(key, *given, **more)
        what = f"{name} {rest.split('/')[1]}"
        with self._writes.open("ab", buffering=0) as file:
            file.write(f"{os.getpid()} {what}\n".encode())  # one write: lines of several workers don't mix
        self._die(f"before {what}")
        done = await write(key, *given, **more)
        self._die(f"after {what}")
        return done

    def _die(self, now: str) -> None:
        with suppress(FileNotFoundError):  # another worker has died of it
            if self._doom.read_text() == now:
                self._doom.unlink()
                os.kill(os.getpid(), signal.SIGKILL)


def make_server(folder: Path) -> Server:
    client = (os.environ["PROVIDER_CLIENT_ID"], os.environ["PROVIDER_CLIENT_SECRET"])
    sign_in = getattr(SignIn, os.environ["SIGN_IN"])(*client, domain=os.environ["PROVIDER"])
    scopes = {"notes:read": "Read your notes"}
    auth_server = AuthServer(ISSUER, resource=RESOURCE, sign_in=sign_in, scopes=scopes, clock=SharedClock(folder))
    server = Server(NAME, version="1.0.0", auth=auth_server)

    @server.tool(scopes=["notes:read"])
    async def ask_provider(ctx: Context) -> dict[str, Any]:
        """Tell what the provider says of the caller, and by a digest which token it was asked with."""
        token = await ctx.upstream_token()
        headers = {"Authorization": f"Bearer {token}"}
        async with aiohttp.request("GET", os.environ["PROVIDER_USERINFO"], headers=headers) as answer:
            said = await answer.json()
        return {"status": answer.status, "sub": said.get("sub"), "token": hashlib.sha256(token.encode()).hexdigest()}

    return server


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    shared = Path(os.environ["FLEET_FOLDER"])
    state = DeadlyState(open_state(os.environ["DOVETAIL_STATE"], NAME), shared)
    make_server(shared).run(transport="http", port=parser.parse_args().port, state=state, trusted_proxies=[NGINX])
