"""Which backend a URL stands for, and what is said of one that stands for nothing."""

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from dovetail import Server, state
from dovetail.errors import SetupError
from dovetail.state.base import open_state
from dovetail.state.memory import MemoryState
from dovetail.state.sqlite import SqliteState


class Made:
    """Stands in for a backend, and keeps what it was made of."""

    def __init__(self, address: str, *, prefix: str) -> None:
        self.address = address
        self.prefix = prefix


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "redis", SimpleNamespace(RedisState=Made), raising=False)
    monkeypatch.setattr(state, "sqlite", SimpleNamespace(SqliteState=Made), raising=False)


@pytest.mark.parametrize("name", ["base", "memory", "redis", "sqlite"])
def test_a_backend_is_loaded_at_its_first_use(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = importlib.import_module(f"dovetail.state.{name}")
    monkeypatch.delattr(state, name)
    assert getattr(state, name) is loaded


@pytest.mark.parametrize("url", [None, "", "memory:", "memory://", "MEMORY:"])
def test_memory(url: str | None) -> None:
    assert isinstance(open_state(url, "server"), MemoryState)


def test_a_real_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    absolute = open_state(f"sqlite:///{tmp_path.as_posix().lstrip('/')}/a%20b.db", "server")
    relative = open_state("sqlite:c.db", "server")
    assert isinstance(absolute, SqliteState)
    assert isinstance(relative, SqliteState)
    assert (absolute.path, relative.path) == (str(tmp_path / "a b.db"), str(tmp_path / "c.db"))


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize(
    ("url", "address", "prefix"),
    [
        ("sqlite:///var/lib/state.db", "/var/lib/state.db", "server"),
        ("sqlite:////var/lib/state.db", "/var/lib/state.db", "server"),
        ("SQLite:state.db", "state.db", "server"),
        ("sqlite:folder/state.db?prefix=mine", "folder/state.db", "mine"),
        ("sqlite:what%3F.db", "what?.db", "server"),
        ("redis://localhost", "redis://localhost", "server"),
        ("Redis://Localhost:6379/0?prefix=x", "redis://Localhost:6379/0", "x"),
        ("rediss://u:p%40ss@h:1/2?a=1&prefix=a%20b&c=%2F", "rediss://u:p%40ss@h:1/2?a=1&c=%2F", "a b"),
        ("redis://h?prefix=p&client_name=x", "redis://h?client_name=x", "p"),
        ("redis://h?no_prefix=2", "redis://h?no_prefix=2", "server"),
        ("unix:///run/redis.sock?db=1", "unix:///run/redis.sock?db=1", "server"),
        ("redis+sentinel://a:1,b:2/main/0", "redis+sentinel://a:1,b:2/main/0", "server"),
        ("rediss+sentinel://a/main?prefix=x", "rediss+sentinel://a/main", "x"),
        (f"redis://h?prefix={'x' * 100}", "redis://h", "x" * 100),
    ],
)
def test_what_a_url_stands_for(url: str, address: str, prefix: str) -> None:
    made = open_state(url, "server")
    assert isinstance(made, Made)
    assert (made.address, made.prefix) == (address, prefix)


@pytest.mark.usefixtures("stand_ins")
def test_the_prefix_of_a_server() -> None:
    names = ["plain", "two words", "a:b", "{slot}", "名", "zero\0", "half \ud800"]
    prefixes = [open_state("redis://h", name).prefix for name in names]
    assert prefixes == ["plain", "two%20words", "a%3Ab", "%7Bslot%7D", "%E5%90%8D", "zero%00", "half%20%3F"]


@pytest.mark.usefixtures("stand_ins")
def test_a_server_without_a_name_does_not_share_a_store_with_others(tmp_path: Path) -> None:
    name = Server().name
    assert isinstance(open_state("memory:", name), MemoryState)
    for url in ("redis://h", f"sqlite://{tmp_path.as_posix()}/a.db"):
        with pytest.raises(SetupError, match=r'without a name .* write Server\("weather"\), or \?prefix=weather'):
            open_state(url, name)
        assert open_state(f"{url}?prefix=mine", name)


WRONG = [
    ("postgres://user:s3cret@host/db", "postgres: is not known, or what follows it is wrong; give one like redis://"),
    ("s3cret", "this is no URL; give one like redis://"),
    ("s3cret@host:6379", "this is no URL"),
    ("redis://user:s3cret@h ost", "holds blanks"),
    ("redis:user:s3cret@host", "redis: is not known, or what"),
    ("redis://:s3cret@h?prefix=", "prefix must stand there once and have 1 to 100"),
    ("redis://:s3cret@h?prefix=a&prefix=b", "prefix must stand there once"),
    ("redis://:s3cret@h?prefix=a%00b", "printable"),
    (f"redis://:s3cret@h?prefix={'x' * 101}", "1 to 100"),
    ("memory:s3cret", "what follows it is wrong"),
    ("sqlite://s3cret.db", "sqlite:///absolute/path or sqlite:relative"),
    ("sqlite:", "takes the path of a file"),
    ("sqlite:s3cret%00.db", "takes the path of a file"),
    ("sqlite:s3cret.db?mode=ro", "no option but prefix"),
]


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize(("url", "message"), WRONG)
def test_what_stands_for_nothing(url: str, message: str) -> None:
    with pytest.raises(SetupError) as caught:
        open_state(url, "server")
    shown = str(caught.value)
    assert shown.startswith("state (DOVETAIL_STATE): ")
    assert message in shown
    assert "s3cret" not in shown
