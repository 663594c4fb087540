"""What `dovetail dev` is made of: its folder, who keeps a version serving, and the files that are watched."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from dovetail.cli.developing.keeper import Keeper
from dovetail.cli.developing.private_state import private_state, sweep
from dovetail.cli.developing.serving_child import Reports, ServingChild
from dovetail.cli.developing.sources import Sources, place_of

# ── what a killed one leaves ──


@pytest.mark.skipif(os.name != "posix", reason="only there it can be told")
def test_what_is_left_is_swept_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("dovetail.cli.developing.private_state.YOUNG_SECONDS", -1.0)
    for name in ("dovetail-dev-left", "dovetail-dev-unknown", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.db").touch()
    (tmp_path / "dovetail-dev-left" / "lock").touch()
    (tmp_path / "dovetail-dev-link").symlink_to(tmp_path / "other")
    (tmp_path / "other" / "lock").touch()
    with private_state() as living:
        sweep()
        names = {one.name for one in tmp_path.iterdir()}
        kept = {"dovetail-dev-unknown", "dovetail-dev-link", "other"}
        assert kept < names
        assert "dovetail-dev-left" not in names
        (own,) = names - kept
        assert own in living
    assert {one.name for one in tmp_path.iterdir()} == kept


@pytest.mark.skipif(os.name != "posix", reason="only there it can be told")
def test_one_that_is_being_made_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "dovetail-dev-young").mkdir()
    (tmp_path / "dovetail-dev-young" / "lock").touch()
    sweep()
    assert [one.name for one in tmp_path.iterdir()] == ["dovetail-dev-young"]


# ── who serves ──


class FakeChild:
    """Does nothing, and remembers what it was told."""

    began = 0.0
    code = 0

    def __init__(self, reports: Reports) -> None:
        self.told: list[str] = []
        self._reports = reports

    def is_(self, what: str) -> None:
        getattr(self._reports, what)(cast("ServingChild", self))

    def end(self, _seconds: float) -> None:
        self.told.append("end")

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: self.told.append(name)


class Kept:
    """A keeper whose children are fakes."""

    def __init__(self, folder: Path, *, alone: bool = False) -> None:
        self.children: list[FakeChild] = []
        self.seen: list[str] = []
        self.keeper = Keeper(
            self.start, Sources([folder]), lambda: self.seen.append("announced"), drain=1.0, alone=alone
        )  # fmt: skip
        self.keeper._start()

    def start(self, reports: Reports) -> ServingChild:
        self.children.append(FakeChild(reports))
        return cast("ServingChild", self.children[-1])

    def happen(self, child: int, *what: str) -> None:
        for each in what:
            self.children[child].is_(each)
            self.keeper._go_on()

    @property
    def told(self) -> list[list[str]]:
        return [child.told for child in self.children]


def test_the_new_one_serves_when_the_old_one_has_let_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = Kept(tmp_path)
    kept.happen(0, "ready", "serving")
    assert kept.seen == ["announced"]
    kept.keeper._start()
    assert kept.told == [["serve"], []]
    kept.happen(1, "ready")
    kept.keeper._look()
    assert kept.told == [["serve", "end", "insist"], ["insist"]]
    assert "restarted" not in capsys.readouterr().err
    kept.happen(0, "let_go")
    kept.happen(1, "serving")
    kept.happen(0, "gone")
    assert kept.told[1].count("serve") == 1
    assert capsys.readouterr().err.count("restarted") == 1
    assert kept.seen == ["announced"]


def test_one_that_dies_has_let_go(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.happen(0, "ready", "serving")
    kept.keeper._start()
    kept.happen(1, "ready")
    kept.happen(0, "gone")
    assert kept.told[1] == ["serve"]


def test_one_that_is_blocked_is_not_waited_for_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.cli.developing.keeper.LET_GO_SECONDS", -1.0)
    kept = Kept(tmp_path)
    kept.happen(0, "ready", "serving")
    kept.keeper._start()
    kept.happen(1, "ready")
    kept.keeper._look()
    kept.happen(0, "let_go", "gone")
    assert kept.told[1].count("serve") == 1


def test_who_has_not_had_its_turn_yet_makes_way_and_the_next_one_waits_for_all(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.happen(0, "ready", "serving")
    for new in (1, 2):
        kept.keeper._start()
        kept.happen(new, "ready")
    kept.happen(1, "let_go", "gone")
    assert kept.told == [["serve", "end"], ["end"], []]
    kept.happen(0, "let_go")
    assert kept.told == [["serve", "end"], ["end"], ["serve"]]


def test_a_version_that_is_not_wanted_any_more_never_serves(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.happen(0, "ready", "serving")
    kept.keeper._start()
    kept.keeper._start()
    kept.happen(1, "ready", "let_go", "gone")  # it had been told to end just before
    kept.happen(2, "ready")
    assert kept.told == [["serve", "end"], ["end"], []]


def test_one_that_dies_before_its_turn_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = Kept(tmp_path)
    kept.happen(0, "ready", "serving")
    kept.keeper._start()
    kept.happen(1, "ready", "gone")
    assert "ended by itself" in capsys.readouterr().err
    kept.happen(0, "let_go", "gone")
    kept.keeper._start()
    kept.happen(2, "ready")
    assert kept.told[2] == ["serve"]


def test_where_sockets_are_not_shared_the_old_one_ends_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = Kept(tmp_path, alone=True)
    kept.happen(0, "ready", "serving")
    kept.keeper._start()
    assert kept.told == [["serve", "end", "wait"], []]
    kept.happen(0, "let_go", "gone")
    kept.happen(1, "gone")
    assert "by itself" not in (told := capsys.readouterr().err)
    assert "nothing is served" in told


def test_a_server_that_ends_by_itself_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = Kept(tmp_path)
    kept.happen(0, "ready", "serving", "gone")
    assert "ended by itself, with code 0; a change starts it again" in capsys.readouterr().err


# ── what is watched ──


@pytest.mark.parametrize(
    ("name", "is_seen"),
    [
        ("server.py", True),
        ("deep/down/part.py", True),
        ("pyproject.toml", True),
        ("data.json", False),  # a server that writes its own data is not to restart itself
        (".venv/lib.py", False),
        (".hidden.d/x.py", False),
        ("__pycache__/x.py", False),
        ("node_modules/x.py", False),
        ("named.json", True),
    ],
)
def test_which_files_are_watched(tmp_path: Path, name: str, is_seen: bool) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    sources = Sources([tmp_path, tmp_path / "named.json"])
    for change in (lambda: path.write_text("a"), lambda: path.write_text("ab"), path.unlink):
        assert sources.changed() == []
        change()
        assert sources.changed() == []  # there may be more to come
        assert sources.changed() == ([str(path)] if is_seen else [])


def test_what_does_not_come_to_rest_is_told_after_a_while(tmp_path: Path) -> None:
    sources = Sources([tmp_path])
    told = []
    for size in range(1, 30):
        (tmp_path / "server.py").write_text("a" * size)
        told.append(sources.changed())
        assert sources.pause == (0.4 if told[-1] else 0.1)
    assert [bool(each) for each in told].index(True) == 19


def test_a_large_folder_is_looked_at_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Sources([tmp_path]).pause == 0.4
    monkeypatch.setattr("dovetail.cli.developing.sources.IDLE_PART", 1e9)
    assert Sources([tmp_path]).pause > 100


def test_where_a_target_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert place_of("deep/server.py:app") == place_of("deep/server.py") == tmp_path.resolve() / "deep"
    assert place_of("package.module:server") == Path.cwd()
