"""Loopback redirect server: waits for the browser that comes back from signing in, and reads its code.

It listens for a while on a port that nobody knows before, believes only a request with the right `state`, and answers
with a page that says that one can go back.
"""

import asyncio
import hmac
import html
import inspect
import logging
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from dovetail.client.oauth.metadata import Provider, plain, shown
from dovetail.errors import NotSignedIn

log = logging.getLogger("dovetail.client")

MAX_URL = 32 * 1024  # characters


def parameters_of(url: str) -> dict[str, str] | None:
    """None if they can't be read, or one of them stands there twice."""
    try:
        pairs = parse_qsl(urlsplit(url).query, keep_blank_values=True, max_num_fields=50)
    except ValueError:
        return None
    found = dict(pairs)
    return found if len(found) == len(pairs) else None


def code_in(url: str, provider: Provider, state: str) -> str:
    """Nothing in it is looked at before it is clear that it answers our question (RFC 6749, 4.1.2; RFC 9207, 2.4)."""
    found = parameters_of(url) if len(url) <= MAX_URL else None
    if found is None or not hmac.compare_digest(found.get("state", "").encode(), state.encode()):
        raise NotSignedIn("The browser came back with the answer to another question: its state is not ours")
    issuer = found.get("iss")
    if issuer is None and provider.metadata.authorization_response_iss_parameter_supported:
        raise NotSignedIn("The browser came back without the name of the issuer, which should have been there")
    if issuer is not None and issuer != provider.issuer:
        raise NotSignedIn(f"The browser was sent to {shown(provider.issuer)}, but came back from {shown(issuer)}")
    if "error" in found:
        words = ": ".join(filter(None, (plain(found["error"]), plain(found.get("error_description", "")))))
        raise NotSignedIn(f"{shown(provider.issuer)} did not let you in: {words}")
    if not found.get("code"):
        raise NotSignedIn("The browser came back without a code")
    return found["code"]


HOST = "127.0.0.1"
PATH = "/callback"
MAX_HEAD = 16 * 1024  # bytes of one visit
LEAVE_SECONDS = 0.5

OpenBrowser = Callable[[str], Any]
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body{{font:1.1rem system-ui,sans-serif;max-width:32rem;margin:20vh auto;padding:0 1rem;color-scheme:light dark}}
</style><h1>{title}</h1><p>{text}</p></html>"""
_HEADERS = (
    "Content-Type: text/html; charset=utf-8",
    "Cache-Control: no-store",
    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Referrer-Policy: no-referrer",
    "Connection: close",
)


def show_and_open(url: str) -> None:
    """Also where there is no browser, or on another machine: whoever sees the URL can open it."""
    sys.stderr.write(f"Sign in with your browser; if it does not open by itself, open\n{url}\n")
    sys.stderr.flush()
    webbrowser.open(url)


class RedirectListener:
    """Waits at `uri` for one browser that comes with the right state."""

    def __init__(self, path: str = PATH) -> None:
        self._path = path
        self._visits: set[asyncio.Task[None]] = set()
        self._state = ""
        self._came: asyncio.Future[str] | None = None
        self.uri = ""

    @classmethod
    @asynccontextmanager
    async def opened(cls, redirect_uri: str | None) -> AsyncIterator["RedirectListener"]:
        """At this URI; without a port in it, on any. Raises NotSignedIn if somebody else is there."""
        parts = urlsplit(redirect_uri or f"http://{HOST}{PATH}")
        host = "::1" if parts.hostname == "::1" else HOST
        listener = cls(parts.path or "/")
        try:
            server = await asyncio.start_server(listener._visit, host, parts.port or 0, limit=MAX_HEAD)
        except OSError:
            raise NotSignedIn(f"Port {parts.port} is in use, where the browser should come back to") from None
        port = server.sockets[0].getsockname()[1]
        listener.uri = parts.geturl() if parts.port else f"http://{parts.netloc}:{port}{parts.path}"
        try:
            yield listener
        finally:
            server.close()
            await listener._leave()

    async def visit(self, url: str, state: str, open_browser: OpenBrowser, seconds: float) -> str:
        """The URL that the browser came back to."""
        came: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._came = came
        self._state = state
        opening = asyncio.create_task(_opened(open_browser, url, came))
        try:
            async with asyncio.timeout(seconds):
                back = await came
            await asyncio.wait([opening], timeout=LEAVE_SECONDS)  # it may want to see the last page
            return back
        except TimeoutError:
            raise NotSignedIn(f"Nobody signed in within {seconds:g} s") from None
        finally:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._visits.add(task)
        try:
            async with asyncio.timeout(10.0):
                if len(self._visits) <= 20:
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._answer(head.decode("latin-1").partition("\r\n")[0]))
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whatever it was, it was not the user's browser
        finally:
            self._visits.discard(task)
            writer.close()

    async def _leave(self) -> None:
        """Whoever is being answered gets the whole page; all others have come in vain."""
        if self._visits:
            await asyncio.wait(self._visits, timeout=LEAVE_SECONDS)
        left = tuple(self._visits)
        for visit in left:
            visit.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _answer(self, line: str) -> bytes:
        method, _, rest = line.partition(" ")
        target = rest.partition(" ")[0]
        if method != "GET" or target.partition("?")[0] != self._path or len(target) > MAX_HEAD // 2:
            return _page(404, "Nothing here", "This is where a sign-in ends. There is nothing else to see.")
        found = parameters_of(target) or {}
        if self._came is None or not hmac.compare_digest(found.get("state", "").encode(), self._state.encode()):
            return _page(400, "Not this one", "This page does not belong to the sign-in that is going on.")
        if not self._came.done():
            self._came.set_result(f"{self.uri}?{target.partition('?')[2]}")
        if "error" in found:
            return _page(200, "Not signed in", "You can close this page and go back to the program.")
        return _page(200, "That is all", "You can close this page and go back to the program.")


async def _opened(open_browser: OpenBrowser, url: str, came: "asyncio.Future[str]") -> None:
    """Some browsers keep whoever opened them waiting, so a plain function runs in a thread."""
    try:
        if inspect.iscoroutinefunction(open_browser):
            await open_browser(url)
        else:
            came_back = await _in_a_thread(open_browser, url)
            if inspect.isawaitable(came_back):
                await came_back
    except Exception:
        log.exception("open_browser= failed")
        if not came.done():
            came.set_exception(NotSignedIn("The page to sign in at could not be opened; the log says why"))


async def _in_a_thread(function: OpenBrowser, url: str) -> Any:
    """Of its own: the end of the process must not wait until somebody closes a browser."""
    done: Future[Any] = Future()

    def run() -> None:
        done.set_running_or_notify_cancel()
        try:
            done.set_result(function(url))
        except Exception as failure:
            done.set_exception(failure)

    threading.Thread(target=run, name="dovetail-browser", daemon=True).start()
    return await asyncio.wrap_future(done)


def _page(status: int, title: str, text: str) -> bytes:
    body = _PAGE.format(title=html.escape(title), text=html.escape(text)).encode()
    phrase = {200: "OK", 400: "Bad Request", 404: "Not Found"}[status]
    head = "\r\n".join((f"HTTP/1.1 {status} {phrase}", *_HEADERS, f"Content-Length: {len(body)}"))
    return f"{head}\r\n\r\n".encode() + body
