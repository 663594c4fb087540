"""The official TypeScript client lists, calls, receives progress, subscribes, resumes, leaves and answers."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from server_process import serving

import nodejs
from server_requests import ANSWERS, EVERYTHING, ROOT, SAMPLED, Notes, accepted, asking_server, new_call

pytestmark = pytest.mark.slow

HANDSHAKES = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN = "2026-07-28"
every_revision = pytest.mark.parametrize("revision", [*HANDSHAKES, MODERN])
both_eras = pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
SERVED = nodejs.PROGRAMS / "served.py"
NOTES = "reference://notes.md"


class Served(NamedTuple):
    url: str
    notes: Path

    def run(self, program: str, revision: str) -> dict[str, Any]:
        said = nodejs.run(program, self.url, revision, str(self.notes))
        assert said["negotiated"] == (MODERN if revision == "auto" else revision)
        return said


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    nodejs.demand()
    folder = tmp_path_factory.mktemp("served")
    notes = folder / "notes.md"
    notes.write_text("The first line.\n")
    with serving([str(SERVED), "--notes", str(notes)], folder / "server.log") as process:
        yield Served(f"{process.origin}/mcp", notes)
    assert not process.complaints, (folder / "server.log").read_text()  # a malformed message is one of them


@every_revision
def test_lists_and_reads(served: Served, revision: str) -> None:
    said = served.run("list.mjs", revision)
    assert said["server"] == "dovetail-reference"
    assert said["tools"] == ["calculate", "roll_dice", "tell_fortune", "slow_operation"]
    assert NOTES in said["resources"]
    assert said["templates"] == ["reference://fortunes/{category}"]
    assert said["prompts"] == ["code_review"]
    assert said["about"].startswith("# Dovetail reference server")
    assert said["prompt"] == "Please review this python code:\nx = 1"
    assert said["completed"] == ["python"]
    assert said["instructions"].startswith("calculate does arithmetic")


@pytest.mark.parametrize("revision", ["2025-03-26", "2025-11-25", MODERN, "auto"])
def test_calls(served: Served, revision: str) -> None:
    said = served.run("call.mjs", revision)
    assert '"result":5' in said["sum"]["text"]
    assert (said["sum"]["structured"] is not None) == (revision >= "2025-06-18")
    assert said["failed"] == {"isError": True, "text": "Tool 'calculate' failed: Division by zero is not allowed"}
    assert said["unknown"]["code"] == -32602
    assert said["many"] == list(range(1, 21))


@both_eras
def test_receives_progress(served: Served, revision: str) -> None:
    said = served.run("progress.mjs", revision)
    assert [each["progress"] for each in said["heard"]] == list(range(10))
    assert "Slept for 300ms" in said["text"]
    assert said["requests"][-1]["type"] == "text/event-stream"


@both_eras
def test_subscribes(served: Served, revision: str) -> None:
    said = served.run("subscribe.mjs", revision)
    assert set(said["heard"]) == {NOTES}
    assert said["text"].rstrip().endswith("changed once")
    assert said["afterwards"] == 0
    if revision == MODERN:
        assert said["filter"] == {"resourceSubscriptions": [NOTES]}
        assert said["ended"] == "local"


@pytest.mark.parametrize("revision", ["2025-03-26", "2025-11-25"])
def test_comes_back_for_its_answer(served: Served, revision: str) -> None:
    said = served.run("resume.mjs", revision)
    assert "Slept for 1500ms" in said["outcome"]["text"]
    assert said["heard"] == list(range(10)), "each report came once, and in order"
    assert [request["status"] for request in said["resumed"]] == [200]


def test_a_broken_call_has_no_answer_where_nothing_resumes(served: Served) -> None:
    said = served.run("resume.mjs", MODERN)
    assert (said["heard"], said["outcome"]["code"], said["resumed"]) == ([0, 1, 2], "REQUEST_TIMEOUT", [])
    assert '"result":2' in said["afterwards"]


@both_eras
def test_leaves(served: Served, revision: str) -> None:
    said = served.run("disconnect.mjs", revision)
    assert said["given"]["message"] == "enough"
    assert '"result":2' in said["next"]
    if revision == MODERN:
        assert said["session"] is None
    else:
        assert (bool(said["session"]), said["deleted"] // 100, said["afterwards"]) == (True, 2, 404)


@pytest.mark.parametrize("program", ["call.mjs", "subscribe.mjs"])
def test_the_oldest_transport(served: Served, program: str) -> None:
    older = served._replace(url=served.url.removesuffix("/mcp") + "/sse")
    older.run(program, "2024-11-05")


# ── what the server asks ──

REPLIES = {
    **{question: accepted(content) for question, content in ANSWERS.items()},
    "Sign in": {"action": "accept"},
    "sampling": SAMPLED,
    "roots": {"roots": [ROOT]},
}


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Notes]]:
    nodejs.demand()
    with asking_server(tmp_path_factory.mktemp("asking")) as served:
        yield served


@pytest.mark.parametrize(
    ("path", "revision"),
    [*(("mcp", revision) for revision in ("2024-11-05", "2025-11-25", MODERN)), ("sse", "2025-11-25")],
)
def test_answers(asking: tuple[str, Notes], path: str, revision: str) -> None:
    origin, notes = asking
    calls = {name: expected.arguments(new_call()) for name, expected in EVERYTHING.items()}
    said = nodejs.run("ask.mjs", f"{origin}/{path}", revision, json.dumps(calls), json.dumps(REPLIES))
    assert said["negotiated"] == revision
    for name, expected in EVERYTHING.items():
        if revision >= expected.since:
            assert re.fullmatch(expected.text, said["outcomes"][name]["result"]), said["outcomes"][name]
            assert notes.steps(calls[name].get("call", "")) == [*expected.steps]
        else:
            outcome = str(said["outcomes"][name])
            assert re.search(rf"This needs elicitation\.(form|url), but {revision} does not know that", outcome)
    assert set(said["asked"]) == {"sampling", "roots"} | ({*ANSWERS} if revision >= "2025-06-18" else set()) | (
        {"Sign in"} if revision >= "2025-11-25" else set()
    )


# ── tasks, by the official requester ──


def ended(status: str, text: str | None = None, error: str | None = None, kind: str = "task") -> dict[str, Any]:
    return {"kind": kind, "status": status, "text": text, "error": error}


TASK_CALLS = {
    "rendered": ended("completed", "A small red film of a beach."),
    "quick": ended("completed", "5", kind="immediate"),
    "failed": ended("completed", "There is no beach"),
    "broken": ended("failed", error="The camera is broken"),
    "cancelled": ended("cancelled"),
}
FAILS_BY_MESSAGE = {"failed": ended("failed", error="There is no beach")}  # in 2025-11-25, that of the status


@pytest.mark.rule("TASK-1", "TASK-9", "TASK-11", "TASK-12", "TASK-16", "TASK-19", "TASK-23", "TASK-55", "TASK-57")
@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
def test_has_tasks(tmp_path: Path, revision: str) -> None:
    nodejs.demand()
    with serving([str(nodejs.PROGRAMS / "tasks_server.py")], tmp_path / "server.log") as process:
        said = nodejs.run("tasks.mjs", f"{process.origin}/mcp", revision)
    assert not process.complaints, (tmp_path / "server.log").read_text()
    tells = {name: {key: said[name].get(key) for key in ("kind", "status", "text", "error")} for name in TASK_CALLS}
    assert tells == TASK_CALLS | ({} if revision == MODERN else FAILS_BY_MESSAGE)
    begun, *others = said["rendered"]["statuses"]
    assert (begun, [each for each in others if each != "working"]) == ("working", ["input_required", "completed"])
    delivery = "task-update" if revision == MODERN else "peer-request"
    asked = [(each["message"], each["delivery"], each["scope"]) for each in said["asked"]]
    assert sorted(asked) == [("Which colour?", delivery, "task"), ("Which size?", delivery, "task")]
    assert said["capabilities"]["cancellation"] is True
