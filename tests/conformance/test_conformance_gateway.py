"""The official conformance suite, strict, against a gateway: as good as the server behind it, in both eras.

The gateway talks to `servers/conformance/server.py` in the newest revision, or in the newest with a handshake. What
differs then has its reason in the specification; a difference that is gone fails the test, as one that is new does.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from server_process import serving

import conformance
import nodejs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(conformance.SUITE_SECONDS)]
PROGRAM = Path(__file__).parent.parent / "gateway" / "gateway_program.py"
HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"
WITH_MODERN_SCENARIOS = {"all", f"all-{MODERN}", f"requirements-{MODERN}"}
SHORT = {MODERN: ["fixtures", "all", "all-2025-06-18"], HANDSHAKE: ["fixtures", f"all-{MODERN}", f"all-{HANDSHAKE}"]}

# TOOL-5, and the same for prompts: a server notifies when its list changes (a SHOULD). The suite has a tool removed and
# added again within one call: what the gateway reads when it hears of that is what it has, so its list has not changed.
SAME_LIST = "the list is the same when the gateway reads it again"
# MRTR-5: the keys of `inputRequests` are the server's own, and unique. A request that a handshake server sends has no
# key, so the gateway makes one, and an answer without a question can't be given to such a server.
NO_KEYS = "a question of a handshake server has no key that the suite could expect"
# LIFE-14 is a rule of 2026-07-28 alone: before, there is no error for a tool that needs an undeclared capability.
NO_SUCH_ERROR = "a handshake server has no error for a capability that its client did not declare"
DIFFERENCES = {
    MODERN: {
        "WARNING server-stateless:sep-2575-server-sends-prompts-list-changed-on-subscription": SAME_LIST,
        "WARNING server-stateless:sep-2575-server-sends-tools-list-changed-on-subscription": SAME_LIST,
    }
}
DIFFERENCES[HANDSHAKE] = {
    **DIFFERENCES[MODERN],
    "FAILURE input-required-result-basic-elicitation:sep-2322-elicitation-incomplete": NO_KEYS,
    "WARNING input-required-result-ignore-extra-params:sep-2322-ignore-unexpected-params": NO_KEYS,
    "FAILURE server-stateless:sep-2575-server-rejects-undeclared-capability": NO_SUCH_ERROR,
    "FAILURE server-stateless:sep-2575-missing-capability-http-400": NO_SUCH_ERROR,
}
# A gateway declares the extensions that it has itself (EXT-3): skills and tasks stay with the server that has them.
TASKS = ("capability-negotiation", "dispatch-and-envelope", "lifecycle", "mrtr-composition", "mrtr-input")
TASKS_TOO = ("request-headers", "request-state-removal", "wire-fields")
SLOW = "slow_compute"  # as a task it takes a minute; in a call each scenario would wait for it
SKILLS = ("directory", "enumeration", "manifest")
ENDED_TASKS = {*map("tasks-{}".format, (*TASKS, *TASKS_TOO))}
ENDS_HERE = {
    "all": {*map("sep-2640-skills-{}".format, SKILLS), *ENDED_TASKS},
    "requirements-2026-07-28": ENDED_TASKS,
    "fixtures": {"extensions.io.modelcontextprotocol/skills", "extensions.io.modelcontextprotocol/tasks", SLOW},
}
NEEDS_A_TASK = "tasks-required-task-error"  # a handshake backend says so by another code (TASK-52)
EXTENSION = re.compile(
    r"\w+ ((?:sep-2640-skills|tasks)-[\w-]+):"
    r"|MISSING (?:capabilities|tools): (extensions\.\S+|slow_compute) is not listed"
)


def name_of(problem: str) -> str:
    """What a problem is called in the tables above."""
    extension = EXTENSION.search(problem)
    return " ".join(problem.split()[:2]) if extension is None else extension[1] or extension[2]


class Gateway(NamedTuple):
    url: str
    revision: str  # of the session with the server behind it


@pytest.fixture(scope="module", params=[MODERN, HANDSHAKE])
def gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One for all legs, which run one after the other."""
    nodejs.demand()
    folder = tmp_path_factory.mktemp("gateway")
    with serving([str(conformance.SERVER / "server.py")], folder / "server.log") as server:
        mounts = {"": {"target": f"{server.origin}/mcp", "revision": request.param, "hidden": [SLOW]}}
        with serving([str(PROGRAM), json.dumps(mounts)], folder / "gateway.log") as served:
            yield Gateway(f"{served.origin}/mcp", request.param)
    assert not [*served.complaints, *server.complaints], (folder / "gateway.log").read_text()


@pytest.mark.parametrize(
    ("gateway", "leg"),
    [
        pytest.param(revision, leg, marks=[] if leg in SHORT[revision] else pytest.mark.soak)
        for revision in (MODERN, HANDSHAKE)
        for leg in conformance.NAMES
    ],
    indirect=["gateway"],
)
def test_a_leg_against_a_gateway(gateway: Gateway, leg: str) -> None:
    folder = conformance.OUTPUT / f"gateway-{gateway.revision}" / leg
    result = conformance.run_leg(leg, url=gateway.url, folder=folder)
    found = {name_of(problem): problem for problem in result.problems}
    expected = set(DIFFERENCES[gateway.revision]) if leg in WITH_MODERN_SCENARIOS else set()
    expected |= ENDS_HERE.get(leg, set())
    if gateway.revision == HANDSHAKE and expected >= ENDED_TASKS:
        expected.add(NEEDS_A_TASK)
    unexplained = [problem for name, problem in found.items() if name not in expected]
    assert not unexplained, "\n".join([str(result), *unexplained])
    assert not expected - found.keys(), "these pass, though they are listed as differences"
