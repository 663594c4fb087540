"""Scopes and `authorize=` on every way to a tool, a resource and a prompt: who may use it, and what others are told."""

import asyncio
import logging
from typing import Any

import pytest

from access_stage import ADMIN, ERAS, NOBODY, READER, WRITER, CallerWire, is_admin, new_server
from dovetail import Server
from dovetail.auth.principal import Hierarchy, Principal
from dovetail.engine.connection import Connection
from wire import MODERN, Wire


async def is_admin_later(principal: Principal | None) -> bool:
    await asyncio.sleep(0)
    return is_admin(principal)


def uses(name: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """All ways to use a thing."""
    argument = {"name": "kind", "value": "g"}
    return {
        "call": ("tools/call", {"name": name, "arguments": {"number": 1}}),
        "get": ("prompts/get", {"name": name, "arguments": {"kind": "good"}}),
        "read": ("resources/read", {"uri": f"{name}://one"}),
        "read template": ("resources/read", {"uri": f"{name}://of/good"}),
        "complete prompt": ("completion/complete", {"ref": {"type": "ref/prompt", "name": name}, "argument": argument}),
        "complete template": (
            "completion/complete",
            {"ref": {"type": "ref/resource", "uri": f"{name}://of/{{kind}}"}, "argument": argument},
        ),
        "complete resource": (
            "completion/complete",
            {"ref": {"type": "ref/resource", "uri": f"{name}://one"}, "argument": argument},
        ),
    }


async def ask_all(wire: Wire, name: str) -> dict[str, Any]:
    """The answers to all uses, without their ids."""
    requests = uses(name)
    if wire.version != MODERN:
        requests["subscribe"] = ("resources/subscribe", {"uri": f"{name}://one"})
    answers = {}
    for use, (method, params) in requests.items():
        answer = await wire.exchange(wire.request(method, params))
        answers[use] = answer.get("error") or answer["result"]
    return answers


# ── use ──


@pytest.mark.rule("AUTH-11", "AUTH-12")
@pytest.mark.parametrize("version", ERAS)
@pytest.mark.parametrize(
    ("principal", "usable"),
    [
        (NOBODY, {"open"}),
        (READER, {"open"}),
        (WRITER, {"open", "scoped"}),
        (ADMIN, {"open", "secret"}),
    ],
)
async def test_who_may_use_what(version: str, principal: Principal | None, usable: set[str]) -> None:
    began: list[str] = []
    async with CallerWire(new_server(began), version, principal) as wire:
        for name in ("open", "scoped", "secret"):
            began.clear()
            answers = await ask_all(wire, name)
            errors = {use for use, answer in answers.items() if "code" in answer}
            if name in usable:
                assert not errors, answers
                assert len(began) == 4
            else:
                assert errors == set(answers), answers
                assert not began
            if name == "scoped" and name not in usable:
                assert {answer["code"] for answer in answers.values()} == {-32600}
                for answer in answers.values():
                    assert answer["message"].startswith("This needs the scopes: notes:read notes:write"), "all of them"


@pytest.mark.parametrize("version", ERAS)
async def test_what_authorize_refuses_does_not_exist(version: str) -> None:
    """Word for word what is said of a name that nobody has ever heard of."""
    async with CallerWire(new_server(), version, WRITER) as wire:
        hidden = await ask_all(wire, "secret")
        for (use, answer), (_, unknown) in zip(hidden.items(), (await ask_all(wire, "public")).items(), strict=True):
            assert "code" in answer
            assert repr(answer).replace("secret", "public") == repr(unknown), use
        misfit = await wire.refusal("resources/read", {"uri": "secret://of/nothing"})
        unknown = await wire.refusal("resources/read", {"uri": "public://of/nothing"})
        assert repr(misfit).replace("secret", "public") == repr(unknown)


@pytest.mark.parametrize("version", ERAS)
async def test_nothing_is_decoded_counted_or_taken_before(version: str) -> None:
    server = Server("order", version="1.0.0", max_concurrency=1, max_queue=0)
    open_now = asyncio.Event()

    @server.tool
    async def hold() -> str:
        await open_now.wait()
        return ""

    server.add_tool(lambda number: "", name="t", scopes=["s"], rate_limit="1/hour", requires=["elicitation"])
    server.add_prompt(lambda: "", name="p", scopes=["s"])
    server.add_resource("r://r", lambda: "", name="r", scopes=["s"])
    async with CallerWire(server, version, READER) as wire:
        wire.send(wire.request("tools/call", {"name": "hold"}, id="held"))
        await asyncio.sleep(0.01)
        for _ in range(3):
            for method, params in (
                ("tools/call", {"name": "t", "arguments": {"no": "such"}}),
                ("prompts/get", {"name": "p", "arguments": {"no": "such"}}),
                ("resources/read", {"uri": "r://r"}),
            ):
                assert (await wire.refusal(method, params))["message"] == "This needs the scopes: s"
        open_now.set()


@pytest.mark.rule("AUTH-13")
@pytest.mark.parametrize("version", ERAS)
async def test_a_scope_that_holds_others(version: str) -> None:
    granted = Hierarchy({"notes:write": ["notes:read"]}).expand(frozenset(["notes:write"]))
    async with CallerWire(new_server(), version, Principal(subject="ann", scopes=granted)) as wire:
        assert not (await wire.ask("tools/call", {"name": "scoped", "arguments": {"number": 1}})).get("isError")
        assert [tool["name"] for tool in (await wire.ask("tools/list"))["tools"]] == ["open", "scoped"]


@pytest.mark.rule("SEC-10")
async def test_a_refusal_names_what_this_one_needs_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    server = new_server()
    server.add_tool(lambda: "", name="other", scopes=["other"])
    caplog.set_level(logging.INFO, "dovetail")
    async with CallerWire(server, MODERN, READER) as wire:
        message = (await wire.refusal("tools/call", {"name": "other"}))["message"]
        assert message == "This needs the scopes: other", "not the whole catalogue"
        assert "'ann'" in caplog.text
        assert "other" in caplog.text


async def test_on_a_pipe_without_a_token_the_message_says_what_helps() -> None:
    async with CallerWire(new_server(), MODERN, NOBODY) as wire:
        assert "DOVETAIL_TOKEN" in (await wire.refusal("tools/call", {"name": "scoped"}))["message"]
        wire.connection = Connection(wire.server.engine, wire, peer=("127.0.0.1", 9))
        assert "DOVETAIL_TOKEN" not in (await wire.refusal("tools/call", {"name": "scoped"}))["message"]


# ── the function ──


@pytest.mark.parametrize("authorize", [is_admin, is_admin_later])
@pytest.mark.parametrize(("principal", "works"), [(NOBODY, False), (WRITER, False), (ADMIN, True)])
async def test_plain_and_async_functions(authorize: Any, principal: Principal | None, works: bool) -> None:
    server = Server("f", version="1.0.0", timeout=5)
    server.add_tool(lambda: "", name="t", authorize=authorize)
    async with CallerWire(server, MODERN, principal) as wire:
        answer = await wire.exchange(wire.request("tools/call", {"name": "t"}))
        assert ("result" in answer) == works
        assert len((await wire.ask("tools/list"))["tools"]) == works


def raises(principal: Any) -> bool:
    raise RuntimeError("no database")


async def hangs(principal: Any) -> bool:
    await asyncio.sleep(60)
    return True


async def generates(principal: Any) -> Any:
    yield True


@pytest.mark.parametrize(
    ("authorize", "logged"),
    [
        (raises, "no database"),
        (hangs, "counts as a no"),
        (generates, "gave async_generator, which counts as a no; return True or False"),
        (lambda principal: "yes", "gave str, which counts as a no"),
        (lambda principal: 1, "gave int, which counts as a no"),
        (lambda principal: None, ""),
    ],
)
async def test_whatever_goes_wrong_is_a_no(authorize: Any, logged: str, caplog: pytest.LogCaptureFixture) -> None:
    server = Server("f", version="1.0.0", timeout=0.05)
    server.add_tool(lambda: "", name="t", authorize=authorize)
    async with CallerWire(server, MODERN, ADMIN) as wire:
        error = await wire.refusal("tools/call", {"name": "t"})
        assert error["message"] == "Unknown tool: t", "and nothing of what has failed"
        assert logged in caplog.text
        assert bool(caplog.records) == bool(logged)


async def test_the_function_is_asked_only_about_those_who_have_the_scopes() -> None:
    asked: list[Any] = []

    def authorize(principal: Any) -> bool:
        asked.append(principal)
        return False

    server = Server("f", version="1.0.0")
    server.add_tool(lambda: "", name="t", scopes=["notes:write"], authorize=authorize)
    for principal, message in ((READER, "This needs the scopes: notes:write"), (WRITER, "Unknown tool: t")):
        async with CallerWire(server, MODERN, principal) as wire:
            assert (await wire.refusal("tools/call", {"name": "t"}))["message"] == message
    assert asked == [WRITER]
