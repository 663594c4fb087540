"""The keys of an issuer: the name of a key comes in, and keys that fit go out, from memory or from the issuer.

Keys are asked for again when they are old, and when a token names one that is not known; then at most every
COOLDOWN seconds, whoever sends what. While the issuer does not answer, the keys that are there stay good for a while.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

from dovetail.auth.claims import read_object
from dovetail.auth.fetch import Fetch, FetchFailed, FetchRequest, names_this_machine, shown
from dovetail.auth.jose import TokenKey, read_keys
from dovetail.auth.verifier import VerifierTrouble

FRESH = 600.0  # seconds after which keys are asked for again
STALE = 3600.0  # seconds after which they don't count any more
COOLDOWN = 30.0  # seconds between two requests, if the first was answered
RETRY = 5.0  # and if it was not
MAX_FITTING = 8  # keys that are tried for one token
OK = 200


class KeySource(Protocol):
    """Where the keys come from. Raises VerifierTrouble if nobody knows now."""

    async def find(self, kid: str | None, algorithm: str) -> Sequence[TokenKey]: ...


class FixedKeys:
    """Keys that the operator wrote down."""

    def __init__(self, keys: Iterable[TokenKey]) -> None:
        self._keys = tuple(keys)

    async def find(self, kid: str | None, algorithm: str) -> Sequence[TokenKey]:
        return _fitting(self._keys, kid, algorithm)


class RemoteKeys:
    """Keys that the issuer publishes, at `jwks_uri` or where its metadata says."""

    def __init__(
        self,
        fetch: Fetch,
        *,
        issuer: str,
        jwks_uri: str | None,
        algorithms: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetch = fetch
        self._issuer = issuer
        self._jwks_uri = jwks_uri
        self._algorithms = algorithms
        self._clock = clock
        self._keys: tuple[TokenKey, ...] = ()
        self._good_at: float | None = None  # when the keys came
        self._asked_at: float | None = None
        self._trouble: str | None = None  # what came of the last request, if it was no keys
        self._request: asyncio.Task[None] | None = None

    async def find(self, kid: str | None, algorithm: str) -> Sequence[TokenKey]:
        age = self._age()
        found = _fitting(self._keys, kid, algorithm) if age < STALE else ()
        if found and age < FRESH:
            return found
        request = self._asking()
        if request is not None and not found:
            await asyncio.shield(request)  # who else waits must not suffer if this one gives up
            found = _fitting(self._keys, kid, algorithm) if self._age() < STALE else ()
        if not found and self._trouble is not None:
            raise VerifierTrouble(f"the keys of {shown(self._issuer)} can't be had: {self._trouble}")
        return found

    def _age(self) -> float:
        return float("inf") if self._good_at is None else self._clock() - self._good_at

    def _asking(self) -> "asyncio.Task[None] | None":
        """The request that is under way, or a new one if it is time for one."""
        if self._request is not None and not self._request.done():
            return self._request
        now, pause = self._clock(), COOLDOWN if self._trouble is None else RETRY
        if self._asked_at is not None and now - self._asked_at < pause:
            return None
        self._asked_at = now
        self._request = asyncio.create_task(self._refresh())
        return self._request

    async def _refresh(self) -> None:
        try:
            where = self._jwks_uri or await discover(self._issuer, self._fetch)
            keys = read_keys(await _object_at(where, self._fetch), self._algorithms)
            if not keys:
                raise ValueError("none of them may be used here")
        except (FetchFailed, ValueError) as failure:
            self._trouble = str(failure)
        except Exception as failure:  # of a fetch that somebody else wrote
            self._trouble = f"the fetch failed with {type(failure).__name__}"
        else:
            self._keys, self._good_at, self._trouble = keys, self._clock(), None


async def discover(issuer: str, fetch: Fetch) -> str:
    """Where the metadata of an issuer (RFC 8414, OpenID Connect) says that its keys are. Raises ValueError."""
    problem = "it has no metadata"
    for url in _metadata_urls(issuer):
        document = await _object_at(url, fetch)
        if document is None:
            continue
        if document.get("issuer") != issuer:  # byte for byte: whoever differs may be somebody else
            problem = f"the metadata at {shown(url)} is of another issuer"
            continue
        where = document.get("jwks_uri")
        if isinstance(where, str) and may_hold_keys(where, issuer):
            return where
        problem = f"the metadata at {shown(url)} names no https URL of keys"
    raise ValueError(problem)


def may_hold_keys(url: str, issuer: str) -> bool:
    """https; or http on this machine, if the issuer is on it too."""
    if names_this_machine(url):
        return names_this_machine(issuer) and url.lower().startswith(("http://", "https://"))
    return url.lower().startswith("https://")


def _metadata_urls(issuer: str) -> list[str]:
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    inserted = [f"{origin}/.well-known/{name}{path}" for name in ("oauth-authorization-server", "openid-configuration")]
    return [*inserted, f"{origin}{path}/.well-known/openid-configuration"] if path else inserted


async def _object_at(url: str, fetch: Fetch) -> dict[str, Any] | None:
    """None if there is none; the page of an error does not count."""
    fetched = await fetch(FetchRequest(url=url))
    return read_object(fetched.body) if fetched.status == OK else None


def _fitting(keys: Sequence[TokenKey], kid: str | None, algorithm: str) -> Sequence[TokenKey]:
    return [key for key in keys if key.fits(kid, algorithm)][:MAX_FITTING]
