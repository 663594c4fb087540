"""What a call asks its client, in either era: `Live` asks at once and waits, `Replay` asks by running again.

Which of the two it is stands in the revision; whoever asks need not know.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Raw

from dovetail.errors import UrlElicitationRequired
from dovetail.protocol.questions import InputRequired, Inquiry

Mark = tuple[Counter[str], Counter[str]]  # how often each question and each step has come up


class Unanswered(BaseException):  # no error, and not to be caught by `except Exception`
    """Ends a run of a function at a question that has no answer yet; the function runs again when there is one."""

    def __init__(self) -> None:
        super().__init__("A question to the client has no answer yet; its function runs again when there is one")


class Interview(Protocol):
    """The questions and steps of one call."""

    @property
    def input_responses(self) -> Mapping[str, Any]:
        """Whatever the client has sent as answers, asked for or not."""

    @property
    def request_state(self) -> Any:
        """What the function gave to `InputRequired` when it ended last; None if it did not."""

    @property
    def is_waiting(self) -> bool:
        """A question stayed unanswered: whatever the function returns or raises, this run does not count."""

    async def ask(self, inquiry: Inquiry[Any], timeout: float) -> Raw:
        """The client's answer as it came. Raises Unanswered if the function has to run again for it."""

    def mark(self) -> Mark:
        """How far the call has come, for a function that begins now."""

    def begin_again(self, mark: Mark | None = None) -> None:
        """A function is called once more in the same round; what was answered and done since `mark` is still known."""

    async def ask_together(self, required: InputRequired) -> None:
        """What a function that asks by itself wants to know; returns if it can be called again at once."""

    async def require_urls(self, required: UrlElicitationRequired) -> None:
        """What is to be done about it, as an exception."""

    async def step(self, name: str, function: Callable[[], Any], *, in_thread: bool) -> Any:
        """Run a side effect once, whatever becomes of this run."""

    async def settle(self) -> None:
        """Wait for the steps that were begun."""

    def finished(self) -> None:
        """The call has come to its end."""
