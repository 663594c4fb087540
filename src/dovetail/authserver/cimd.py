"""Programs whose id is a URL (Client ID Metadata Documents): the URL comes in, and what its document says goes out.

Anybody may make us fetch a URL, so it has to be public, is asked rarely, and its answer is short.
"""

import logging
from urllib.parse import urlsplit

from dovetail.auth.fetch import Fetch, Fetched, FetchFailed, FetchRequest, make_fetch
from dovetail.authserver.allowances import Allowance
from dovetail.authserver.client_metadata import ClientMetadata, as_client, bad_metadata
from dovetail.authserver.client_record import OAuthClient
from dovetail.authserver.marks import Marks
from dovetail.authserver.redirects import why_not_a_url
from dovetail.authserver.refusals import OAuthRefusal

MAX_URL = 1000  # characters
MAX_BYTES = 8 * 1024
FETCH_SECONDS = 5.0
KEPT_SECONDS = 300.0  # what a document says; then it is fetched again
LAST_SECONDS = 7 * 86_400.0  # what the document of a program that users know said last, if there is no other
RETRY_SECONDS = 60.0  # between two tries to fetch that again
FETCHES = Allowance("fetches", "new programs", 60.0, per_network=30, per_customer=60, for_all=120)
LATER = frozenset({408, 425, 429})  # statuses that say as little of a document as a failure of its server
JSON_KINDS = ("application/json", "application/cimd+json")
FRESH, LAST = "document", "last document"  # the kinds of marks

log = logging.getLogger("dovetail.authserver")


class PublishedClients:
    """Fetches documents, and keeps them for a while."""

    def __init__(self, marks: Marks, *, allow_loopback: bool = False, fetch: Fetch | None = None) -> None:
        self._marks = marks
        self._allow_loopback = allow_loopback
        self._fetch = fetch

    async def find(self, url: str, network: str) -> OAuthClient:
        """Raises OAuthRefusal, which says what is wrong with the URL or its document."""
        self._check(url)
        raw = await self._marks.get(FRESH, url) or await self._renewed(url)
        if raw is None:
            await FETCHES.take(self._marks, network)
            raw = await self._taken(url, await self._asked(url))
        return _read(raw, url)

    async def _renewed(self, url: str) -> bytes | None:
        """The document of a program that users know. It is not counted, so strangers can't use up its turns."""
        last = await self._marks.get(LAST, url)
        if last is None or not await self._marks.claim("renewal", url, RETRY_SECONDS):
            return last
        answer = await self._asked(url)
        if answer is None or answer.status >= 500 or answer.status in LATER:
            return last
        try:
            raw = await self._taken(url, answer)
        except OAuthRefusal:
            await self._marks.forget(LAST, url)  # it was taken back, or is a stranger's now
            raise
        await keep_document(self._marks, url)
        return raw

    def _check(self, url: str) -> None:
        why = why_not_a_url(url, "a client_id") if len(url) <= MAX_URL else "it is too long"
        if why is None and not url.startswith("https://") and not self._allow_loopback:
            why = "a client_id is an https URL"
        if why is None and urlsplit(url).path in ("", "/"):
            why = "a client_id that is a URL has a path"
        if why is not None:
            raise OAuthRefusal("invalid_client", f"client_id: {why}")

    async def _asked(self, url: str) -> Fetched | None:
        """None if there is no answer. Why is only logged: it tells which names there are in the network around us."""
        if self._fetch is None:
            self._fetch = make_fetch(allow_loopback=self._allow_loopback, max_bytes=MAX_BYTES, timeout=FETCH_SECONDS)
        try:
            return await self._fetch(FetchRequest(url=url, headers={"Accept": "application/json"}))
        except FetchFailed as failure:
            log.info("no document of a program: %s", failure)
            return None

    async def _taken(self, url: str, answer: Fetched | None) -> bytes:
        """What the answer holds, kept for a while. Raises OAuthRefusal."""
        kind = "" if answer is None else answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if answer is None or answer.status != 200 or kind not in JSON_KINDS:
            raise OAuthRefusal("invalid_client", "client_id: no JSON document could be fetched from this URL")
        _read(answer.body, url)
        await self._marks.put(FRESH, url, answer.body, KEPT_SECONDS)
        return answer.body


async def keep_document(marks: Marks, url: str) -> None:
    """Users know this program: if its document can't be fetched for a while, what it said last counts."""
    raw = await marks.get(FRESH, url)
    if raw is not None:
        await marks.put(LAST, url, raw, LAST_SECONDS)


def _read(raw: bytes, url: str) -> OAuthClient:
    said = ClientMetadata.read(raw)
    if said.client_id != url:
        raise bad_metadata("The document at the client_id names another client_id")
    method = said.token_endpoint_auth_method or "none"
    if said.client_secret is not None or method.startswith("client_secret"):
        raise bad_metadata("A document that everybody can read holds no secret")
    return as_client(said, url, method)
