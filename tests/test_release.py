"""The workflow of a release: it parses, its commands are there, and it has no secret and no right that it can spare."""

import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail.cli.main import COMMANDS, main

ROOT = Path(__file__).parents[1]
WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"
TEXT = WORKFLOW.read_text()
JOBS: dict[str, Any] = yaml.safe_load(TEXT)["jobs"]
STEPS = [(job, step) for job, found in JOBS.items() for step in found["steps"]]
LINES = [
    (job, line)
    for job, step in STEPS
    for line in step.get("run", "").replace("\\\n", " ").splitlines()
    if line.strip()
]  # fmt: skip


def test_what_is_published_is_what_was_built_and_tested() -> None:
    assert {name: job.get("needs") for name, job in JOBS.items()} == {"build": None, "test": "build", "publish": "test"}
    actions = [step["uses"].partition("@")[0] for job, step in STEPS if job == "publish"]
    assert actions == ["actions/download-artifact", "pypa/gh-action-pypi-publish"]


def test_it_has_no_secret_and_only_the_job_that_publishes_may_identify_itself() -> None:
    workflow = yaml.safe_load(TEXT)
    assert workflow["permissions"] == {"contents": "read"}
    assert {name: job.get("permissions") for name, job in JOBS.items()} == {
        "build": None, "test": None, "publish": {"id-token": "write"},
    }  # fmt: skip
    assert not re.search(r"secrets\.|password", TEXT)
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # `on`, to YAML 1.1


def test_every_action_is_pinned_to_a_version() -> None:
    used = [step["uses"] for _, step in STEPS if "uses" in step]
    assert len(used) == len(re.findall("uses:", TEXT))
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+@(v\d+|release/v\d+)", each) for each in used)


@pytest.mark.parametrize(("job", "line"), LINES, ids=[f"{job}: {line.strip()[:60]}" for job, line in LINES])
def test_a_command_of_it_is_there(job: str, line: str) -> None:
    program, *words = shlex.split(line)
    if program == "make":
        targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        assert set(words) <= targets
    elif program == "dovetail":
        assert words[0] in {*COMMANDS, "--version"}
        command = main.get_command(main.make_context("dovetail", [], resilient_parsing=True), words[0])
        known = {option for param in getattr(command, "params", ()) for option in param.opts}
        assert {word for word in words[1:] if word.startswith("-")} <= known
    elif program == "python":
        assert words[:2] in (["-m", "pip"], ["-m", "pytest"])
        folders = [word for word in " ".join(words).replace("=", " ").split() if word.startswith("tests")]
        assert all((ROOT / folder).is_dir() for folder in folders)
        extras = set(re.findall(r"\[([a-z,]+)\]$", " ".join(words[:4]), re.MULTILINE))
        assert extras <= {"all", "dev"}
    else:
        assert program == "test"
        assert os.path.basename(words[1]) == "dovetail_mcp-${GITHUB_REF_NAME#v}-py3-none-any.whl"
