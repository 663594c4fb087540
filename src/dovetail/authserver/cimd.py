"""Programs whose id is a URL (Client ID Metadata Documents): the URL comes in, and what its document says goes out.

Anybody may make us fetch a URL, so it has to be public, is asked rarely, and its answer is short.
"""

from urllib.parse import urlsplit

from dovetail.auth.fetch import Fetch, FetchFailed, FetchRequest, make_fetch
from dovetail.authserver.client_metadata import ClientMetadata, as_client, bad_metadata
from dovetail.authserver.client_record import OAuthClient
from dovetail.authserver.marks import Marks
from dovetail.authserver.redirects import why_not_a_url
from dovetail.authserver.refusals import OAuthRefusal

MAX_URL = 1000  # characters
MAX_BYTES = 8 * 1024
FETCH_SECONDS = 5.0
KEPT_SECONDS = 300.0  # what a document says; then it is fetched again
PER_CALLER = 30  # fetches in a minute
PER_MINUTE = 120  # for everybody together
MINUTE = 60.0
JSON_KINDS = ("application/json", "application/cimd+json")


class PublishedClients:
    """Fetches documents, and keeps them for a while."""

    def __init__(self, marks: Marks, *, allow_loopback: bool = False, fetch: Fetch | None = None) -> None:
        self._marks = marks
        self._allow_loopback = allow_loopback
        self._fetch = fetch

    async def find(self, url: str, caller: str) -> OAuthClient:
        """Raises OAuthRefusal, which says what is wrong with the URL or its document."""
        self._check(url)
        raw = await self._marks.get("document", url)
        if raw is None:
            await self._count(caller)
            raw = await self._fetched(url)
            client = _read(raw, url)
            await self._marks.put("document", url, raw, KEPT_SECONDS)
            return client
        return _read(raw, url)

    def _check(self, url: str) -> None:
        why = why_not_a_url(url, "a client_id") if len(url) <= MAX_URL else "it is too long"
        if why is None and not url.startswith("https://") and not self._allow_loopback:
            why = "a client_id is an https URL"
        if why is None and urlsplit(url).path in ("", "/"):
            why = "a client_id that is a URL has a path"
        if why is not None:
            raise OAuthRefusal("invalid_client", f"client_id: {why}")

    async def _count(self, caller: str) -> None:
        for name, most in ((caller, PER_CALLER), ("", PER_MINUTE)):
            if await self._marks.count("fetches", name, MINUTE) > most:
                raise OAuthRefusal.too_many("new programs", await self._marks.left("fetches", name))

    async def _fetched(self, url: str) -> bytes:
        if self._fetch is None:
            self._fetch = make_fetch(allow_loopback=self._allow_loopback, max_bytes=MAX_BYTES, timeout=FETCH_SECONDS)
        try:
            answer = await self._fetch(FetchRequest(url=url, headers={"Accept": "application/json"}))
        except FetchFailed as failure:
            raise OAuthRefusal("invalid_client", f"client_id: {failure}") from None
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if answer.status != 200 or kind not in JSON_KINDS:
            raise OAuthRefusal("invalid_client", "client_id: there is no JSON document at this URL")
        return answer.body


def _read(raw: bytes, url: str) -> OAuthClient:
    said = ClientMetadata.read(raw)
    if said.client_id != url:
        raise bad_metadata("The document at the client_id names another client_id")
    method = said.token_endpoint_auth_method or "none"
    if said.client_secret is not None or method.startswith("client_secret"):
        raise bad_metadata("A document that everybody can read holds no secret")
    return as_client(said, url, method)
