"""What the links over HTTP have in common: every message is a POST of its own, in a task of its own."""

import asyncio
import contextlib
import logging
from abc import abstractmethod
from collections.abc import Coroutine
from typing import Any

from dovetail.client.links import MAX_UNREAD, UNREAD, Link, Receiver
from dovetail.client.outgoing import CANCELLED, Outgoing
from dovetail.client.requests import HttpRequests
from dovetail.errors import BadAnswer, ConnectionLost, NotSignedIn, ServerError, SetupError
from dovetail.protocol.methods import RequestId

LEAVE_SECONDS = 2.0  # for the last words: what is still on its way, and the end of the session
MAX_ANSWERS = 100  # that are posted at once: a server may ask much in one breath
ERRAND_SECONDS = 30.0  # for a message that has no answer, and so no timeout of its own

log = logging.getLogger("dovetail.client")


class PostingLink(Link):
    """Requests go out side by side; notifications arrive in order, and before whatever is written after them."""

    reconnects = True

    def __init__(self, requests: HttpRequests) -> None:
        self._requests = requests
        self._posts: dict[RequestId, asyncio.Task[None]] = {}  # of requests
        self._errands: set[asyncio.Task[None]] = set()  # all others
        self._answers: set[asyncio.Task[None]] = set()  # those of them that answer the server
        self._told: asyncio.Task[None] | None = None  # the latest notification
        self._streams: dict[asyncio.Task[None], None] = {}  # of what is said unasked: the latest, and those that end

    def attach(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._turns = asyncio.Semaphore(MAX_ANSWERS)
        self._requests.patience = receiver.patience

    @property
    def identity(self) -> str | None:
        return self._requests.identity

    async def open(self, receiver: Receiver) -> None:
        self.attach(receiver)
        await self._requests.open()

    async def drain(self) -> None:
        if self._told is not None and not self._told.done():
            await asyncio.wait([self._told])

    def abandon(self, id: RequestId) -> bool:
        if id in self._posts:
            self._posts[id].cancel()
        return False

    async def close(self) -> None:
        self._drop_requests()
        self._stop_stream()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_SECONDS):
                    await asyncio.gather(*self._errands, return_exceptions=True)
                    await self._leave()
        finally:
            tasks = [*self._posts.values(), *self._errands, *self._streams]
            for task in tasks:
                task.cancel()
            try:
                await asyncio.gather(*tasks, return_exceptions=True)
            finally:
                await self._requests.close()

    @abstractmethod
    async def _post(self, out: Outgoing) -> None:
        """Send one message and see to its answer."""

    @abstractmethod
    async def _leave(self) -> None:
        """The last words."""

    def _send(self, out: Outgoing) -> "asyncio.Task[None]":
        task = asyncio.create_task(self._deliver(out, self._told))
        if out.id is not None:
            self._posts[out.id] = task
            task.add_done_callback(lambda _: self._forget(out.id, task))
        else:
            self._errands.add(task)
            task.add_done_callback(self._errands.discard)
            if out.is_answer:
                self._answer(task)
            elif out.method is not None and out.method != CANCELLED:
                self._told = task
        return task

    def _answer(self, task: "asyncio.Task[None]") -> None:
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)
        if len(self._answers) > MAX_UNREAD:
            self._receiver.lost(UNREAD)

    def _forget(self, id: RequestId | None, task: "asyncio.Task[None]") -> None:
        if id is not None and self._posts.get(id) is task:
            del self._posts[id]

    def _drop_requests(self) -> None:
        for task in self._posts.values():
            if task is not asyncio.current_task():
                task.cancel()

    def _start_stream(self, reading: Coroutine[Any, Any, None]) -> None:
        self._stop_stream()
        task = asyncio.create_task(reading)
        self._streams[task] = None
        task.add_done_callback(lambda _: self._streams.pop(task, None))

    def _stop_stream(self) -> None:
        for task in self._streams:
            if task is not asyncio.current_task():
                task.cancel()

    async def _deliver(self, out: Outgoing, after: "asyncio.Task[None] | None") -> None:
        try:
            async with asyncio.timeout(ERRAND_SECONDS if out.id is None else None):
                if after is not None:
                    await asyncio.wait([after])
                async with self._turns if out.is_answer else contextlib.nullcontext():
                    await self._post(out)
        except TimeoutError:
            self._receiver.failed(None, ConnectionLost(f"{out.subject}: not delivered within {ERRAND_SECONDS:g} s"))
        except (ConnectionLost, BadAnswer) as failure:
            self._receiver.failed(out.id, type(failure)(f"{out.subject}: {failure}"))
        except (ServerError, NotSignedIn, SetupError) as failure:
            self._receiver.failed(out.id, failure)
        except Exception:  # or somebody would wait for ever
            log.exception("%s could not be sent", out.subject)
            self._receiver.failed(out.id, ConnectionLost(f"{out.subject}: it could not be sent; the log says why"))
