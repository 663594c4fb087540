"""Questions of a server to its client: what is asked, what the client must be able to do, and when two are one."""

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import UNSET

from dovetail.errors import SetupError
from dovetail.protocol.revisions import Revision

T_co = TypeVar("T_co", covariant=True)
MAX_QUESTIONS = 100  # in one round
MAX_KEY = 256
_sorted_json = msgspec.json.Encoder(order="sorted").encode


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One question, as it is known whatever the client's revision."""

    method: str
    params: dict[str, Any]  # spelled as the newest revision does
    requires: tuple[str, ...]  # client capabilities; `sampling.tools` names a part of one

    @property
    def digest(self) -> str:
        """Two questions are the same if this is: any change of wording or schema makes another one."""
        import hashlib  # late: most servers never ask, and it brings OpenSSL

        whole = hashlib.sha256(_sorted_json([self.method, self.params])).digest()
        return urlsafe_b64encode(whole[:16]).decode().rstrip("=")


class Inquiry(Protocol[T_co]):
    """A question together with how it is put, and how its answer is read."""

    @property
    def question(self) -> Question: ...

    def params(self, revision: Revision) -> dict[str, Any]:
        """As the client's revision spells it."""

    def read(self, result: bytes | msgspec.Raw, revision: Revision) -> T_co:
        """The client's result, checked. Raises QuestionFailed if it does not fit the question."""


class InputRequired(msgspec.Struct, frozen=True):
    """What a function returns to ask by itself: its own keys, and a state that only the server can read.

    It is called again with `ctx.input_responses`, which holds whatever the client sent, and `ctx.request_state`.
    """

    requests: Mapping[str, Inquiry[Any]] = {}
    state: Any = UNSET

    def __post_init__(self) -> None:
        given: object = self.requests
        if not isinstance(given, Mapping):
            shown = type(given).__name__
            raise SetupError(
                f'InputRequired takes a dict of keys of your own, as in {{"name": Elicit(…)}}, not {shown}'
            )
        if not self.requests and self.state is UNSET:
            raise SetupError("InputRequired needs questions, or state= to be called again with")
        if len(self.requests) > MAX_QUESTIONS:
            raise SetupError(f"InputRequired: it asks {len(self.requests)} questions; {MAX_QUESTIONS} are allowed")
        for key, inquiry in given.items():
            if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY:
                raise SetupError(f"InputRequired: the key {key!r} must be a string of up to {MAX_KEY} characters")
            if not isinstance(getattr(inquiry, "question", None), Question):
                shown = type(inquiry).__name__
                raise SetupError(f"InputRequired: {key!r} must be an Elicit, ElicitUrl, Sample or Roots, not {shown}")
