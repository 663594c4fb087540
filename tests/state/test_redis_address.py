"""URLs of a Redis store: what they mean, what is wrong with them, and that no text shows what is secret in them."""

import asyncio
import datetime
import importlib
import ipaddress
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from redis_stage import LONG, eventually, is_back

import stores
from dovetail.errors import SetupError
from dovetail.state.base import StoreTrouble
from dovetail.state.redis import RedisAddress, RedisState

SECRET = "s3cr3t-%41"
QUOTED = "s3cr3t-%2541"


@pytest.mark.parametrize(
    ("url", "shown", "options"),
    [
        ("redis://", "redis://", {}),
        ("redis://store:1234/5", "redis://store:1234/5", {"host": "store", "port": 1234, "db": 5}),
        ("redis://me:pw@store/", "redis://store/", {"host": "store", "username": "me", "password": "pw"}),
        ("redis://:p%40w@[::1]:7/1", "redis://[::1]:7/1", {"host": "::1", "port": 7, "db": 1, "password": "p@w"}),
        ("rediss://store?ssl_cert_reqs=none", "rediss://store", {"ssl_cert_reqs": "none"}),
        ("unix:///run/redis.sock?db=3&password=pw", "unix:///run/redis.sock", {"path": "/run/redis.sock", "db": 3}),
    ],
)
def test_plain_urls(url: str, shown: str, options: dict[str, object]) -> None:
    address = RedisAddress(url)
    assert address.shown == shown
    assert address.sentinels == []
    assert options.items() <= address.options.items()


@pytest.mark.parametrize(
    ("url", "sentinels", "service", "options"),
    [
        ("redis+sentinel://a:1,b:2/main/3", [("a", 1), ("b", 2)], "main", {"db": 3}),
        ("redis+sentinel://[::1]:9/m%20x/", [("::1", 9)], "m x", {}),
        ("redis+sentinel://me:p%40w@a,b/main/0", [("a", 26379), ("b", 26379)], "main", {"password": "p@w"}),
        ("rediss+sentinel://a/main?sentinel_password=pw", [("a", 26379)], "main", {"sentinel_password": "pw"}),
    ],
)
def test_sentinel_urls(url: str, sentinels: list[object], service: str, options: dict[str, object]) -> None:
    address = RedisAddress(url)
    assert (address.sentinels, address.service) == (sentinels, service)
    assert options.items() <= address.options.items()
    assert "pw" not in address.shown
    assert "p%40w" not in address.shown


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "how it begins"),
        ("http://{}@store", "how it begins"),
        ("redis://me:{}@store:port/0", "port"),
        ("redis://me:{}@store/five", "number of a database"),
        ("redis://me:{}@store/0?db=five", "value of an option"),
        ("redis://me:{}@store/0?decode_responses=true", "'decode_responses'"),
        ("redis://me:{}@store/0#x", "%23"),
        ("redis://me:{}@store/0?ssl_certfile=x", "option"),
        ("redis+sentinel://me:{}@a:1,b:2", "service"),
        ("redis+sentinel://me:{}@a:1,b:x/main", "port"),
        ("redis+sentinel://me:{}@a:1,/main", "can't be read"),
    ],
)
def test_urls_that_are_not_possible(url: str, problem: str) -> None:
    with pytest.raises(SetupError, match=problem) as caught:
        RedisState(url.format(QUOTED))
    assert SECRET not in str(caught.value)
    assert QUOTED not in str(caught.value)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    monkeypatch.delitem(sys.modules, "dovetail.state.redis")
    with pytest.raises(SetupError, match=r'pip install "dovetail-mcp\[redis\]"'):
        importlib.import_module("dovetail.state.redis")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    stores.demand()
    return tmp_path


@pytest.fixture
def guarded(folder: Path) -> Iterator[stores.StoreServer]:
    server = stores.StoreServer(folder / "store", requirepass=SECRET)
    yield server
    server.kill()


@pytest.mark.parametrize("user", [f":{QUOTED}@", "", "nobody-knows-me:wr0ng@", ":wr0ng@"])
async def test_passwords(guarded: stores.StoreServer, user: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    state = RedisState(f"redis://{user}127.0.0.1:{guarded.port}/0")
    if is_right := QUOTED in user:
        await state.check()
        guarded.kill()
    with pytest.raises(StoreTrouble) as caught:
        await state.check()
    for secret in ("wr0ng", "nobody-knows-me", SECRET):
        assert secret not in f"{caught.value!r} {state!r} {caplog.text}"
    assert is_right or "another user or password" in caplog.text
    await state.close()


async def test_a_socket_of_the_host(folder: Path) -> None:
    path = folder / "s"
    server = stores.StoreServer(folder / "store", unixsocket=path)
    state = RedisState(f"unix://{path}?db=2")
    await state.put("key", b"value", ttl=LONG)
    assert b"db2:keys=" in server.command("INFO", "keyspace")
    await state.close()
    server.kill()


async def test_tls(folder: Path) -> None:
    certificate, key = self_signed(folder)
    files = {"tls_cert_file": certificate, "tls_key_file": key, "tls_ca_cert_file": certificate}
    server = stores.StoreServer(folder / "store")
    port = stores.free_port()
    for name, value in {**files, "tls_auth_clients": "no", "tls_port": port}.items():
        if not server.command("CONFIG", "SET", name.replace("_", "-"), str(value)).startswith(b"+OK"):
            server.kill()
            pytest.skip("! this store was built without TLS")
    url = f"rediss://127.0.0.1:{port}/0"
    state = RedisState(f"{url}?ssl_ca_certs={certificate}")
    for value in (b"value", bytes(5_000_000)):
        await state.put("key", value, ttl=LONG)
        assert (await state.get("key")).value == value
    await state.close()
    stranger = RedisState(url)
    with pytest.raises(StoreTrouble):
        await stranger.check()
    await stranger.close()
    server.kill()


def self_signed(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "store")])
    now = datetime.datetime.now(datetime.UTC)
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(here, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "store.crt").write_bytes(certificate.public_bytes(pem))
    (folder / "store.key").write_bytes(secret)
    return folder / "store.crt", folder / "store.key"


@pytest.mark.slow
async def test_sentinels_know_the_new_master(folder: Path) -> None:
    """One master, one replica, one sentinel; the master is killed, and the replica takes its place."""
    master = stores.StoreServer(folder / "master", requirepass="pw", masterauth="pw")
    replica = stores.StoreServer(
        folder / "replica", requirepass="pw", masterauth="pw", replicaof=f"127.0.0.1 {master.port}"
    )
    conf = folder / "sentinel.conf"
    conf.write_text(
        f"sentinel monitor main 127.0.0.1 {master.port} 1\nsentinel auth-pass main pw\n"
        "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 3000\n"
    )
    sentinel = stores.StoreServer(folder / "sentinel", str(conf), "--sentinel", loglevel="notice")
    state = RedisState(f"redis+sentinel://:pw@127.0.0.1:1,127.0.0.1:{sentinel.port}/main/0")
    try:
        await state.put("key", b"value", ttl=LONG)
        listener = state.listen(["topic"])
        await state.check()
        await eventually(lambda: b"slaves=1" in sentinel.command("INFO", "sentinel"), 20)
        master.kill()
        with pytest.raises(StoreTrouble):
            await state.put("key", b"value", ttl=LONG, if_version=0)
        await eventually(lambda: is_back(state), 30)
        assert await asyncio.wait_for(listener.wait(), 5) == {"topic"}
        assert await state.put("key", b"newer", ttl=LONG)
        assert state.outages == 1
    finally:
        await state.close()
        for server in (sentinel, replica, master):
            server.kill()
