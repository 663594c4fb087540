"""Plays calls of several rounds by hand, as a client of 2026-07-28 does: answer, and make the request again."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dovetail import Client, Server

MODERN = "2026-07-28"
EVERYTHING = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}, "context": {}}, "roots": {}}
Answers = Mapping[str, Any] | Callable[[str], Any]


def asking_client(server: Server | str, capabilities: Mapping[str, Any] = EVERYTHING) -> Client:
    """A client that is open to any question, and leaves the answers to the test."""
    return Client(server, protocol_version=MODERN, capabilities=capabilities)


def accepted(value: Any) -> dict[str, Any]:
    return {"action": "accept", "content": {"value": value}}


def is_input_required(result: Mapping[str, Any]) -> bool:
    return result["resultType"] == "input_required"


def messages(result: Mapping[str, Any]) -> list[str]:
    """What an `input_required` result asks."""
    return sorted(request["params"]["message"] for request in result.get("inputRequests", {}).values())


def replies(result: Mapping[str, Any], answers: Answers) -> dict[str, Any]:
    """The `inputResponses` to such a result; questions that have no answer are left out."""
    answer_to = answers if callable(answers) else answers.get
    found = {key: answer_to(request["params"]["message"]) for key, request in result.get("inputRequests", {}).items()}
    return {key: accepted(value) for key, value in found.items() if value is not None}


@dataclass
class Played:
    """How a call went."""

    result: dict[str, Any] = field(default_factory=dict)
    rounds: list[list[str]] = field(default_factory=list)  # what was asked in each
    states: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(block["text"] for block in self.result["content"])

    @property
    def failed(self) -> bool:
        return bool(self.result.get("isError"))


async def play(
    client: Client,
    name: str,
    answers: Answers,
    arguments: Mapping[str, Any] | None = None,
    *,
    method: str = "tools/call",
    limit: int = 40,
) -> Played:
    """Make a request and answer until it is complete."""
    params: dict[str, Any] = {"uri": name} if method == "resources/read" else {"name": name}
    if arguments is not None:
        params["arguments"] = arguments
    played = Played(await client.request(method, params))
    while is_input_required(played.result):
        assert len(played.rounds) < limit, played.rounds
        played.rounds.append(messages(played.result))
        played.states.append(played.result["requestState"])
        played.result = await client.request(method, {**params, **retry(played.result, answers)})
    return played


def retry(result: Mapping[str, Any], answers: Answers) -> dict[str, Any]:
    """What a request gets in addition when it is made again."""
    return {"inputResponses": replies(result, answers), "requestState": result["requestState"]}
