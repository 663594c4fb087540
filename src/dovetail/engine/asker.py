"""The part of `Context` that asks: a function's words come in, and a coroutine goes out that has to be awaited."""

import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

from dovetail import registry
from dovetail.engine.asking import ask, interview_of, list_roots
from dovetail.engine.deprecation import warn_deprecated
from dovetail.engine.exchange import Exchange
from dovetail.protocol.questions import Inquiry

if TYPE_CHECKING:
    from dovetail.engine.core import Engine
    from dovetail.protocol.sampling import ContextScope, ToolMode
    from dovetail.registry.elicitation import Elicited, ManyTitles, Titles
    from dovetail.registry.roots import Root
    from dovetail.registry.sampling import OfferedTool, Preferences, Sampled, Turn

T = TypeVar("T")
J = TypeVar("J", bound=bool | int | float | str | list[Any] | Mapping[str, Any] | None)  # JSON gives it back as it is
Answer: TypeAlias = Coroutine[Any, Any, T]


class Asker:
    """Asks the client, and takes steps that run once."""

    _engine: "Engine"
    _exchange: Exchange
    _can_wait: bool  # False for a `def` function that runs on the loop
    _thread: int  # in which the loop runs

    @overload
    def elicit(
        self, message: str, response_type: None = None, *, timeout: float | None = None
    ) -> "Answer[Elicited[None]]": ...
    @overload
    def elicit(
        self, message: str, response_type: type[T], *, timeout: float | None = None
    ) -> "Answer[Elicited[T]]": ...
    @overload
    def elicit(
        self, message: str, response_type: "list[str] | Titles", *, timeout: float | None = None
    ) -> "Answer[Elicited[str]]": ...
    @overload
    def elicit(
        self, message: str, response_type: "list[list[str]] | ManyTitles", *, timeout: float | None = None
    ) -> "Answer[Elicited[list[str]]]": ...
    @overload
    def elicit(
        self, message: str, *, schema: Mapping[str, Any], timeout: float | None = None
    ) -> "Answer[Elicited[dict[str, Any]]]": ...
    @overload
    def elicit(self, message: str, response_type: Any, *, timeout: float | None = None) -> "Answer[Elicited[Any]]": ...
    def elicit(
        self,
        message: str,
        response_type: Any = None,
        *,
        schema: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> "Answer[Elicited[Any]]":
        """Ask the user to fill in a form, on every revision: `.action` tells whether they did, `.data` what they said.

        `response_type` is a scalar, a Literal, an Enum, a list of choices, or a class of flat fields; `schema` is a raw
        one instead. In a `def` function: `answer = ctx.wait(ctx.elicit(...))`.
        """
        self._refuse_unawaitable("elicit")
        return self._ask("elicit", registry.elicitation.Elicit(message, response_type, schema=schema), timeout)

    def elicit_url(
        self, message: str, url: str, *, elicitation_id: str | None = None, timeout: float | None = None
    ) -> "Answer[Elicited[None]]":
        """Ask the user to open a URL, for what must not pass through the client, such as a password.

        That it was accepted says only that the user was willing. Where clients want to hear when the user is done,
        `server.complete_elicitation(elicitation_id)` tells them.
        """
        self._refuse_unawaitable("elicit_url")
        return self._ask(
            "elicit_url", registry.elicitation.ElicitUrl(message, url, elicitation_id=elicitation_id), timeout
        )

    def sample(
        self,
        messages: "Turn | Sequence[Turn]",
        *,
        max_tokens: int = 1024,
        system_prompt: str | None = None,
        temperature: float | None = None,
        stop_sequences: Sequence[str] | None = None,
        model_preferences: "Preferences | None" = None,
        include_context: "ContextScope | None" = None,
        tools: "Sequence[OfferedTool] | None" = None,
        tool_choice: "ToolMode | Mapping[str, Any] | None" = None,
        metadata: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> "Answer[Sampled]":
        """Ask the client's model: `.text` is what it said. MCP 2026-07-28 deprecates this.

        `tools` are offered to the model where the client allows that; it is you who runs those that it chooses.
        """
        self._refuse_unawaitable("sample")
        self._warn_deprecated("sampling")
        sample = registry.sampling.Sample(
            messages,
            max_tokens=max_tokens,
            system_prompt=system_prompt,
            temperature=temperature,
            stop_sequences=stop_sequences,
            model_preferences=model_preferences,
            include_context=include_context,
            tools=tools,
            tool_choice=tool_choice,
            metadata=metadata,
        )
        return self._ask("sample", sample, timeout)

    def list_roots(self, *, timeout: float | None = None) -> "Answer[list[Root]]":
        """The folders that the client works in. MCP 2026-07-28 deprecates this."""
        self._refuse_unawaitable("list_roots")
        self._warn_deprecated("roots")
        return _named("list_roots", list_roots(self._engine, self._exchange, timeout))

    @overload
    def step(self, name: str, function: Callable[[], Awaitable[J]]) -> Answer[J]: ...
    @overload
    def step(self, name: str, function: Callable[[], J]) -> Answer[J]: ...
    def step(self, name: str, function: Callable[[], Any]) -> Answer[Any]:
        """Run a side effect once, however often this call is run again for the sake of an answer.

        Its result is remembered, so it must be JSON. A step that raises is not remembered.
        """
        self._refuse_unawaitable("step")
        in_thread = threading.get_ident() != self._thread
        return _named("step", self._step(name, function, in_thread))

    async def _step(self, name: str, function: Callable[[], Any], in_thread: bool) -> Any:
        return await interview_of(self._engine, self._exchange).step(name, function, in_thread=in_thread)

    @property
    def input_responses(self) -> Mapping[str, Any]:
        """For functions that return `InputRequired`: whatever the client sent as answers, asked for or not.

        Nothing in it is checked: it is what a stranger wrote.
        """
        interview = self._exchange.interview
        return {} if interview is None else interview.input_responses

    @property
    def request_state(self) -> Any:
        """For functions that return `InputRequired`: the state that they gave, which nobody could read or change."""
        interview = self._exchange.interview
        return None if interview is None else interview.request_state

    def _ask(self, name: str, inquiry: Inquiry[T], timeout: float | None) -> Answer[T]:
        return _named(name, ask(self._engine, self._exchange, inquiry, timeout))

    def _refuse_unawaitable(self, name: str) -> None:
        if not self._can_wait:
            raise RuntimeError(f"ctx.{name}: a def function with thread=False can't wait; leave out thread=False")

    def _warn_deprecated(self, feature: str) -> None:
        if self._exchange.request.revision.rounds:
            warn_deprecated(feature)


def _named(name: str, question: Answer[T]) -> Answer[T]:
    """Who forgets to await it is told of it by this name."""
    setattr(question, "__qualname__", f"ctx.{name}")  # noqa: B010  # of every coroutine, but not in its type
    return question
