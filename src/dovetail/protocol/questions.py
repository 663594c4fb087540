"""Questions that a server puts to its client: what is asked, what the client must be able to do, and when two are one."""

import hashlib
from base64 import urlsafe_b64encode
from typing import Any, Protocol, TypeVar

import msgspec

from dovetail.protocol.revisions import Revision

T_co = TypeVar("T_co", covariant=True)
_sorted_json = msgspec.json.Encoder(order="sorted").encode


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One question, as it is known whatever the client's revision."""

    method: str
    params: dict[str, Any]  # spelled as the newest revision does
    requires: tuple[str, ...]  # client capabilities; `sampling.tools` names a part of one

    @property
    def digest(self) -> str:
        """Two questions are the same if this is: any change of wording or schema makes another one."""
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
