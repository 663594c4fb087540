"""DPoP on the resource server (RFC 9449 7): a proof, its request and its token come in; a refusal goes out, or nothing.

A token whose `cnf.jkt` names a key is good only together with a proof that is signed by that key, made for this
request and token a moment ago, and never seen before. Who steals the token has no such proof, and one that was seen
on its way can't be used again. What was seen is remembered by `claim`: in the state of a fleet, or in `UsedProofs`.
All share that room, so each key may have only so many proofs in it at a time.
"""

import hashlib
import hmac
import math
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar
from urllib.parse import SplitResult, urlsplit

from dovetail.auth.proofs import ALGORITHMS, BadProof, Proof, read_proof
from dovetail.errors import INTERNAL_ERROR, ProtocolError, RateLimited, Unauthorized
from dovetail.protocol.pagination import encode_base64url

T = TypeVar("T")
Claim = Callable[[str, float], Awaitable[bool]]  # whether nobody had this key in so many seconds

ALGS = " ".join(ALGORITHMS)  # the `algs` of a challenge
LEEWAY = 300.0  # seconds that a proof may be old, or ahead
CLOCK_MARGIN = 60.0  # seconds by which the clocks of a fleet may differ
NONCE_SECONDS = 150.0
MAX_JTI = 256  # characters
MAX_USED = 1_000_000  # proofs that one process remembers, at about 100 bytes each
MAX_OF_ONE = 50_000  # that are remembered of one caller at a time, by one worker: a tenth of what a SQLite state takes
MAX_CALLERS = 20_000  # whose proofs are counted; all others count as one
OTHERS = ""
SHELF_SECONDS = 30.0  # those that end in the same while are forgotten together

_PORTS = {"https": 443, "http": 80}
_VISIBLE = re.compile(r"[!-~]+", re.ASCII)  # urlsplit passes over some others in silence
_ESCAPED = re.compile(r"%([0-9A-Fa-f]{2})", re.ASCII)
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


class _Shelves(Generic[T]):
    """What ends in the same while lies on one shelf, and is forgotten together."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._first = 0  # the number of the while at hand, when somebody last looked
        self.by_number: dict[int, T] = {}

    def at(self, end: float) -> T:
        number = math.ceil(end / SHELF_SECONDS)
        if (shelf := self.by_number.get(number)) is None:
            shelf = self.by_number[number] = self._make()
        return shelf

    def ended(self, now: float) -> list[T]:
        """Those that are over, once."""
        first = math.ceil(now / SHELF_SECONDS)
        if first == self._first:
            return []
        self._first = first
        return [self.by_number.pop(number) for number in tuple(self.by_number) if number < first]


class UsedProofs:
    """The `claim` of one process. When it is full, new proofs are refused: none is forgotten that could come again."""

    def __init__(self, most: int = MAX_USED, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._known: set[bytes] = set()
        self._shelves: _Shelves[list[bytes]] = _Shelves(list)  # with all that are known

    async def claim(self, key: str, seconds: float) -> bool:
        now = self._clock()
        for shelf in self._shelves.ended(now):
            self._known.difference_update(shelf)
        digest = hashlib.sha256(key.encode()).digest()[:16]
        if digest in self._known:
            return False
        if len(self._known) >= self._most:
            text = "Too many DPoP proofs were used in the last minutes; try again later"
            raise ProtocolError(text, code=INTERNAL_ERROR, http_status=503)
        self._known.add(digest)
        self._shelves.at(now + seconds).append(digest)
        return True


class ProofCounts:
    """How many proofs of each caller this worker has remembered: nobody must use up the room of all others."""

    def __init__(self, most: int = MAX_OF_ONE, clock: Callable[[], float] = time.time) -> None:
        self._most = most
        self._clock = clock
        self._counts: dict[str, int] = {}  # by caller
        self._shelves: _Shelves[dict[str, int]] = _Shelves(dict)  # the same, of the proofs that end together

    def refuse_too_many(self, caller: str) -> None:
        """Raises RateLimited."""
        now = self._clock()
        for shelf in self._shelves.ended(now):
            for each, ended in shelf.items():
                self._counts[each] -= ended
                if not self._counts[each]:
                    del self._counts[each]
        caller = self._counted(caller)  # now that there may be room again
        if self._counts.get(caller, 0) >= self._most:
            ends = min(number for number, shelf in self._shelves.by_number.items() if caller in shelf)
            text = "Too many DPoP proofs of this caller were used in the last minutes; try again later"
            raise RateLimited(text, retry_after=max(1, math.ceil(ends * SHELF_SECONDS - now)))

    def add(self, caller: str, seconds: float) -> None:
        """One more, which is remembered for so long."""
        caller = self._counted(caller)
        self._counts[caller] = self._counts.get(caller, 0) + 1
        shelf = self._shelves.at(self._clock() + seconds)
        shelf[caller] = shelf.get(caller, 0) + 1

    def _counted(self, caller: str) -> str:
        return caller if caller in self._counts or len(self._counts) < MAX_CALLERS else OTHERS


class DpopNonces:
    """Makes nonces and knows them again, without remembering any: each belongs to a window of time and to a secret."""

    def __init__(
        self,
        secrets: Callable[[], Sequence[bytes]],
        *,
        seconds: float = NONCE_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Whoever has the same secrets takes the same nonces. Each is good for one to two times `seconds`."""
        self._secrets = secrets  # asked every time: a fleet may agree on others
        self._seconds = seconds
        self._clock = clock

    def fresh(self) -> str:
        return _nonce(self._secrets()[0], self._window())

    def knows(self, nonce: str) -> bool:
        given, window = nonce.encode("utf-8", "replace"), self._window()
        ours = [_nonce(secret, each) for secret in self._secrets() for each in (window, window - 1)]
        return any(hmac.compare_digest(given, each.encode()) for each in ours)

    def _window(self) -> int:
        return int(self._clock() // self._seconds)


class DpopCheck:
    """Whether a request may use its token, as far as keys are concerned. Everything raises Unauthorized, or does not.

    Who has used too many proofs gets RateLimited.

    check = DpopCheck(lambda key, seconds: state.claim(key, b"", seconds))
    """

    def __init__(
        self,
        claim: Claim,
        *,
        required: bool = False,
        nonces: DpopNonces | None = None,
        most_of_one: int = MAX_OF_ONE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`required`: nobody gets in without a proof. `nonces`: every proof has to hold one that we made."""
        self._claim = claim
        self._counts = ProofCounts(most_of_one, clock)
        self._required = required
        self._nonces = nonces
        self._clock = clock

    @property
    def nonce(self) -> str | None:
        """What `DPoP-Nonce` has to carry in an answer that says `use_dpop_nonce`, and may in any other."""
        return None if self._nonces is None else self._nonces.fresh()

    def check_bearer(self, claims: Mapping[str, Any]) -> None:
        """For a token that came as `Bearer`: it must not be bound to a key, or stealing it would be enough."""
        if needs_proof(claims):
            raise _refusal("This token is bound to a key; send it as DPoP, with a proof", "invalid_token")
        if self._required:
            raise _refusal("This server takes only tokens that are bound to a key by DPoP", "invalid_token")

    async def check(
        self, proof: str, *, method: str, url: str, token: str, claims: Mapping[str, Any], caller: str | None = None
    ) -> None:
        """For a token that came as `DPoP`. What costs most is done last, and only for the key of the token.

        `caller`: whose proofs are counted together; those of one key, if not given.
        """
        try:
            signed = read_proof(proof)
            thumbprint = signed.thumbprint
            if not _is_bound(claims, thumbprint):
                raise _refusal("The token is not bound to the key of the DPoP proof", "invalid_token")
            said = signed.opened()
            self._compare(said, method=method, url=url, token=token)
        except BadProof as bad:
            raise _refusal(str(bad), "invalid_dpop_proof") from None
        if self._nonces is not None and not self._nonces.knows(said.nonce or ""):
            raise _refusal("The DPoP proof has to hold the nonce that this answer carries", "use_dpop_nonce")
        caller = caller or thumbprint
        self._counts.refuse_too_many(caller)
        seen = hashlib.sha256(f"{thumbprint} {said.jti}".encode("utf-8", "replace")).hexdigest()
        seconds = said.iat + LEEWAY + CLOCK_MARGIN - self._clock()
        if not await self._claim(f"dpop/{seen}", seconds):
            raise _refusal("This DPoP proof was used before", "invalid_dpop_proof")
        self._counts.add(caller, seconds)

    def _compare(self, said: Proof, *, method: str, url: str, token: str) -> None:
        """Raises BadProof with the first thing that is wrong."""
        digest = encode_base64url(hashlib.sha256(token.encode("utf-8", "replace")).digest())
        wrong = {
            "The DPoP proof is for another method": said.htm != method,
            "The DPoP proof is for another URL": not same_target(said.htu, url),
            "The DPoP proof is too old, or of the future": not abs(said.iat - self._clock()) <= LEEWAY,
            "The DPoP proof is for another token": not hmac.compare_digest((said.ath or "").encode(), digest.encode()),
            f"The jti of the DPoP proof has to have 1 to {MAX_JTI} characters": not 0 < len(said.jti) <= MAX_JTI,
        }
        for what, is_so in wrong.items():
            if is_so:
                raise BadProof(what)


def needs_proof(claims: Mapping[str, Any]) -> bool:
    """Whether a token is bound to a key, so that it is not good on its own."""
    bound = claims.get("cnf")
    return isinstance(bound, Mapping) and "jkt" in bound


def only_proof(headers: Sequence[bytes]) -> str:
    """The one `DPoP` header of a request. Raises Unauthorized if there is none, or more."""
    if len(headers) != 1:
        found = "no DPoP header" if not headers else "more than one DPoP header"
        raise _refusal(f"The request has {found}; it needs exactly one", "invalid_dpop_proof")
    return headers[0].strip().decode("latin-1")


def same_target(htu: str, url: str) -> bool:
    """Whether both name the same thing, whatever their query and fragment are (RFC 9449 4.3, RFC 3986 6.2)."""
    wanted = _target(url)
    return wanted is not None and _target(htu) == wanted


def _target(url: str) -> tuple[str, str, int, str] | None:
    """Scheme, host, port and path in one spelling for each; None if it is no URL of HTTP."""
    if not _VISIBLE.fullmatch(url):
        return None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    default = _PORTS.get(parts.scheme)  # which is in small letters already, as is the host
    if default is None or not parts.hostname or "@" in parts.netloc:
        return None
    return parts.scheme, parts.hostname, default if port is None else port, _path(parts)


def _path(parts: SplitResult) -> str:
    """Each `%xx` in capitals, or as the letter itself where it need not be escaped."""
    return _ESCAPED.sub(_unescaped, parts.path) or "/"


def _unescaped(escape: re.Match[str]) -> str:
    letter = chr(int(escape[1], 16))
    return letter if letter in _UNRESERVED else escape[0].upper()


def _is_bound(claims: Mapping[str, Any], thumbprint: str) -> bool:
    wanted = claims["cnf"]["jkt"] if needs_proof(claims) else None
    return isinstance(wanted, str) and hmac.compare_digest(wanted.encode("utf-8", "replace"), thumbprint.encode())


def _nonce(secret: bytes, window: int) -> str:
    return encode_base64url(hmac.digest(secret, b"dovetail dpop nonce %d" % window, "sha256")[:16])


def _refusal(message: str, error: str) -> Unauthorized:
    return Unauthorized(message, error=error)
