"""Asking as people use it: what they forget, mistake for something else, or mix; and what they are told then."""

import asyncio
import gc
import logging
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from dovetail import Client, Context, Elicit, ElicitUrl, InputRequired, Server, SetupError, UrlElicitationRequired

ERAS = ["2026-07-28", "2025-11-25", "2025-06-18"]
every_era = pytest.mark.parametrize("revision", ERAS)


async def call(function: Callable[..., Any], revision: str, *, asked: list[str] | None = None, **options: Any) -> str:
    """What a tool says to a user who answers "x" to everything; `thread=` and the like are the tool's own options."""
    server = Server("use")
    server.add_tool(function, name="tool", **options)

    def reply(question: Any) -> str:
        if asked is not None:
            asked.append(question.message)
        return "x"

    async with Client(server, elicitation_handler=reply, protocol_version=revision) as client:
        return (await client.call_tool("tool", {}, raise_on_error=False)).text


def reason(log: pytest.LogCaptureFixture) -> str:
    (record,) = [each for each in log.records if each.levelno == logging.ERROR]
    assert record.exc_info is not None
    return str(record.exc_info[1])


# ── forgotten ──


@pytest.mark.parametrize("name", ["elicit", "elicit_url", "list_roots", "sample", "step"])
async def test_who_forgets_to_await_is_told_what(name: str) -> None:
    arguments: dict[str, list[Any]] = {
        "elicit": ["Sure?", bool],
        "elicit_url": ["Sign in", "https://example.com"],
        "list_roots": [],
        "sample": ["Hello"],
        "step": ["save", dict],
    }

    async def tool(ctx: Context) -> str:
        getattr(ctx, name)(*arguments[name])
        return "done"

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        assert await call(tool, "2025-11-25") == "done"
        gc.collect()
    assert f"coroutine 'ctx.{name}' was never awaited" in [str(each.message) for each in heard]


@pytest.mark.parametrize("name", ["elicit", "elicit_url", "list_roots", "sample", "step"])
async def test_who_can_not_wait_is_told_what(name: str, caplog: pytest.LogCaptureFixture) -> None:
    arguments: dict[str, list[Any]] = {
        "elicit": ["Sure?", bool],
        "elicit_url": ["Sign in", "https://example.com"],
        "list_roots": [],
        "sample": ["Hello"],
        "step": ["save", dict],
    }

    def tool(ctx: Context) -> str:
        getattr(ctx, name)(*arguments[name])
        return "done"

    assert "failed" in await call(tool, "2026-07-28", thread=False)
    assert reason(caplog).startswith(f"ctx.{name}: a def function with thread=False can't wait")


# ── mistaken ──


@pytest.mark.parametrize("response_type", [("red", "blue"), {"red"}, "str", 5])
def test_values_that_are_taken_for_types(response_type: Any) -> None:
    with pytest.raises(SetupError, match="parameter response_type: it is a type such as str, or a list"):
        Elicit("Colour?", response_type)


@pytest.mark.parametrize("url", ["/sign-in", "Sign in", "example.com", "ftp://example.com", ""])
def test_what_is_no_whole_url(url: str) -> None:
    with pytest.raises(SetupError, match="must be a whole URL, such as https"):
        ElicitUrl("Sign in", url)


@every_era
@pytest.mark.parametrize("timeout", ["5", 0, -1, float("nan"), float("inf")])
async def test_a_timeout_that_is_none(revision: str, timeout: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def tool(ctx: Context) -> str:
        return str(await ctx.elicit("Sure?", str, timeout=timeout))

    assert "failed" in await call(tool, revision)
    assert reason(caplog).startswith(f"timeout={timeout!r} of a question must be a number of seconds, above 0")


@pytest.mark.parametrize("pages", [(), ("https://example.com",), ([ElicitUrl("Sign in", "https://example.com")],)])
def test_pages_that_are_none(pages: tuple[Any, ...]) -> None:
    with pytest.raises(SetupError, match="UrlElicitationRequired takes pages"):
        UrlElicitationRequired(*pages)


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        ([Elicit("Name?", str)], 'takes a dict of keys of your own, as in {"name": Elicit(…)}, not list'),
        ({1: Elicit("Name?", str)}, "the key 1 must be a string"),
        ({"name": "Name?"}, "'name' must be an Elicit, ElicitUrl, Sample or Roots, not str"),
    ],
)
def test_questions_that_are_none(requests: Any, words: str) -> None:
    with pytest.raises(SetupError) as caught:
        InputRequired(requests)
    assert words in str(caught.value)


@every_era
async def test_a_state_that_is_not_json_is_refused_before_anybody_is_asked(
    revision: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []

    async def tool() -> Any:
        return InputRequired({"name": Elicit("Name?", str)}, state=object())

    assert "failed" in await call(tool, revision, asked=asked)
    assert "the state of InputRequired must be JSON" in reason(caplog)
    assert not asked


# ── mixed ──


@every_era
async def test_both_ways_to_ask_in_one_tool_are_the_same_in_every_era(revision: str) -> None:
    """Up to 2025-11-25 too, a function that asks by itself is called again: its steps and questions are known then."""
    asked: list[str] = []
    orders: list[str] = []

    def order() -> int:
        orders.append("a hat")
        return len(orders)

    async def tool(ctx: Context) -> Any:
        number = await ctx.step("order", order)
        size = await ctx.elicit(f"Size of {number}?", str)
        if "colour" not in ctx.input_responses:
            return InputRequired({"colour": Elicit("Colour?", str)}, state=number)
        return f"{size.data} {ctx.request_state} of {len(orders)}"

    assert await call(tool, revision, asked=asked) == "x 1 of 1"
    assert asked == ["Size of 1?", "Colour?"]


@every_era
async def test_the_same_question_three_times_is_three_questions(revision: str) -> None:
    asked: list[str] = []

    async def tool(ctx: Context) -> str:
        answers = await asyncio.gather(*(ctx.elicit("Again?", str) for _ in range(3)))
        return " ".join(str(each.data) for each in answers)

    assert await call(tool, revision, asked=asked) == "x x x"
    assert asked == ["Again?"] * 3


@pytest.mark.parametrize("option", ["elicitation_handler", "sampling_handler"])
def test_a_handler_that_can_not_be_called(option: str) -> None:
    with pytest.raises(SetupError, match=f"Client: {option}='yes' is not possible; give a function"):
        Client(Server("use"), **{option: "yes"})
