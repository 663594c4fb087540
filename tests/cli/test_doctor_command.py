"""`dovetail doctor`: each of its notes, with what is wrong made wrong."""

import json
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from command_stage import typed

from dovetail.cli import doctor
from dovetail.cli.doctor import OK, PROBLEM, WARNING, CheckResult


def only(notes: Iterable[CheckResult]) -> CheckResult:
    (note,) = list(notes)
    return note


def test_all_of_it_as_it_is_typed(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    done = typed(tmp_path, "doctor", "--json", **home, DOVETAIL_SECRET="x" * 40)
    found = json.loads(done.stdout)
    notes = {note["subject"]: note for note in found["notes"]}
    assert (done.returncode, found["problems"]) == (0, 0)
    assert notes["Command"]["level"] == OK
    assert notes["DOVETAIL_SECRET"]["text"] == "set"
    assert notes["Traces"]["text"] == "off, unless a program says telemetry=True"
    lost = {"DOVETAIL_STATE": "redis://:hush@127.0.0.1:1/0", "DOVETAIL_HOSTT": "x"}
    done = typed(tmp_path, "doctor", **home, **lost, OTEL_SDK_DISABLED="true", OTEL_TRACES_EXPORTER="hush")
    assert done.returncode == 1
    assert b"1 problem and 1 warning" in done.stdout
    assert b"fix: see that the store runs" in done.stdout
    assert b"off, since OTEL_SDK_DISABLED is true" in done.stdout
    assert b"hush" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "value", "level", "message"),
    [
        ("DOVETAIL_PORT", "9000", OK, "set"),
        ("DOVETAIL_HOSTS", "a", WARNING, "did you mean DOVETAIL_HOST?"),
        ("DOVETAIL_ZZZZZZZ", "a", WARNING, "unset it"),
        ("DOVETAIL_PORT", "tcp://10.0.0.1:80", PROBLEM, "Kubernetes"),
        ("DOVETAIL_WORKERS", "hush", PROBLEM, "a whole number"),
        ("DOVETAIL_STATE", "redis://:hush@host/0", OK, "set"),
        ("DOVETAIL_METRICS", "hush", PROBLEM, "on or off"),
        ("DOVETAIL_METRICS_TOKEN", "hush", PROBLEM, "at least 16 characters"),
        ("DOVETAIL_METRICS_TOKEN", "hush" * 4, OK, "set"),
        ("DOVETAIL_LOG_FORMAT", "json", OK, "set"),
        ("DOVETAIL_LOG_FORMAT", "hush", PROBLEM, "text or json"),
        ("DOVETAIL_LOG_LEVEL", "debug", OK, "set"),
        ("DOVETAIL_LOG_LEVEL", "hush", WARNING, "WARNING"),
        ("DOVETAIL_LOG_LEVEL", "", OK, "set"),
    ],
)
def test_variables(name: str, value: str, level: str, message: str) -> None:
    note = only(doctor.check_variables({name: value, "HOME": "/"}))
    assert (note.level, note.subject) == (level, name)
    assert message in note.text + note.fix
    assert "hush" not in note.text + note.fix


def test_every_variable_that_the_package_reads_is_known() -> None:
    source = Path(doctor.__file__).parents[1]
    text = "".join(path.read_text() for path in source.rglob("*.py"))
    assert set(re.findall(r"DOVETAIL_([A-Z_]*[A-Z])", text)) <= doctor.KNOWN


def test_packages() -> None:
    assert all(note.level == OK for note in doctor.check_packages())
    notes = {note.subject: note for note in doctor.check_packages(lambda name: None)}
    assert (notes["msgspec"].level, notes["msgspec"].fix) == (PROBLEM, "pip install msgspec")
    assert (notes["redis"].level, "pip install 'dovetail-mcp[redis]'" in notes["redis"].text) == (OK, True)


def test_another_command_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "not on the PATH" in only(doctor.check_path()).text
    (tmp_path / "dovetail").write_text("#!/bin/sh\n")
    (tmp_path / "dovetail").chmod(0o755)
    note = only(doctor.check_path())
    assert (note.level, str(tmp_path) in note.text) == (WARNING, True)


@pytest.mark.parametrize(
    ("url", "level", "message"),
    [
        (None, OK, "none is set"),
        ("sqlite:///{folder}/state.db", OK, "answers"),
        ("sqlite:///{folder}/no/such/state.db", PROBLEM, "make its folder"),
        ("carrier-pigeon://hush", PROBLEM, "carrier-pigeon: is not known"),
        ("redis://:hush@127.0.0.1:1/0", PROBLEM, "does not answer"),
    ],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_state(tmp_path: Path, url: str | None, level: str, message: str) -> None:
    note = only(doctor.check_state(url and url.format(folder=str(tmp_path).lstrip("/"))))
    assert (note.level, message in note.text) == (level, True)
    assert "hush" not in note.text + note.fix


@pytest.mark.parametrize(
    ("text", "level", "message"),
    [
        ('{"mcpServers": {"a": {"command": "sh"}, "b": {"url": "https://x"}}}', OK, "2 servers"),
        ('{"mcpServers": {"a": {"command": "/no/such/program", "env": {"KEY": "hush"}}}}', WARNING, "/no/such/program"),
        ('{"mcpServers": {"a": {"command": "sh", "args": ["run", "/no/server.py"]}}}', WARNING, "/no/server.py"),
        ('{"mcpServers": {', PROBLEM, "line 1"),
        ('{"mcpServers": {} // mine\n}', WARNING, "is not plain JSON"),
        ('{"mcpServers": []}', PROBLEM, "no object"),
        ('{"mcpServers": {}, "mcpServers": {}}', PROBLEM, "more than once"),
        (None, PROBLEM, "can't be read"),
        ("", OK, "0 servers"),
    ],
)
def test_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, level: str, message: str) -> None:
    for name in ("HOME", "XDG_CONFIG_HOME", "USERPROFILE", "APPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert "none that" in only(doctor.check_hosts()).text
    file = tmp_path / ".mcp.json"
    file.mkdir() if text is None else file.write_text(text)
    note = only(doctor.check_hosts())
    assert (note.level, note.subject, message in note.text) == (level, "Claude Code", True), note
    assert "hush" not in note.text + note.fix
    assert text is None or file.read_text() == text


@pytest.mark.parametrize(
    ("host", "on", "token", "warns"),
    [
        ("", "", "", False),
        ("0.0.0.0", "", "", False),
        ("localhost", "1", "", False),
        ("0.0.0.0", "on", "", True),
        ("0.0.0.0", "true", "hush" * 8, False),
    ],
)
def test_metrics(host: str, on: str, token: str, warns: bool) -> None:
    given = {"DOVETAIL_HOST": host, "DOVETAIL_METRICS": on, "DOVETAIL_METRICS_TOKEN": token}
    assert ["without a token" in note.text for note in doctor.check_metrics(given)] == [True] * warns


@pytest.fixture
def port() -> Iterator[int]:
    """Of something that takes connections, as a collector does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


API, SDK = {"opentelemetry-api": "1"}, {"opentelemetry-api": "1", "opentelemetry-sdk": "1"}
EXPORTER, ENDPOINT = "OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"


@pytest.mark.parametrize(
    ("environ", "installed", "expected"),
    [
        ({"OTHER": "hush"}, SDK, [(OK, "off, unless")]),
        ({EXPORTER: "none", ENDPOINT: "http://127.0.0.1:1"}, SDK, [(OK, "off, unless")]),
        ({"OTEL_SDK_DISABLED": "True", ENDPOINT: "http://127.0.0.1:1"}, API, [(OK, "OTEL_SDK_DISABLED")]),
        ({EXPORTER: "otlp"}, {}, [(WARNING, "dovetail-mcp[otel]")]),
        ({"OTEL_SERVICE_NAME": "hush"}, API, [(WARNING, "with opentelemetry-instrument")]),
        ({EXPORTER: "otlp"}, SDK, [(OK, "configures the SDK")]),
        ({ENDPOINT: "http://u:hush@127.0.0.1:{port}/hush?hush"}, SDK, [(OK, ""), (OK, "takes connections")]),
        ({ENDPOINT: "127.0.0.1:{port}"}, SDK, [(OK, ""), (OK, "takes connections")]),
        ({ENDPOINT: "http://u:hush@127.0.0.1:1/hush"}, SDK, [(OK, ""), (WARNING, "start the collector")]),
        ({ENDPOINT: "http://"}, SDK, [(OK, ""), (WARNING, "no connection")]),
        ({ENDPOINT: "http://hush:hush"}, SDK, [(OK, ""), (WARNING, "no URL")]),
        ({TRACES_ENDPOINT: "http://127.0.0.1:1"}, API, [(WARNING, ""), (WARNING, "no connection")]),
    ],
)
def test_traces(
    environ: Mapping[str, str], installed: Mapping[str, str], expected: list[tuple[str, str]], port: int
) -> None:
    given = {name: value.replace("{port}", str(port)) for name, value in environ.items()}
    notes = list(doctor.check_traces(given, installed.get))
    assert [note.level for note in notes] == [level for level, _ in expected], notes
    for note, (_, message) in zip(notes, expected, strict=True):
        assert message in note.text + note.fix
        assert "hush" not in note.text + note.fix
