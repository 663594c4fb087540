"""The Redis backend on a real server: the contract of all backends with real time, its own features and its URLs."""

import asyncio
import contextlib
import datetime
import importlib
import ipaddress
import logging
import random
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from contract import BackendContract, Elapse, fill, received, receives_nothing, subscribed
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from redis import exceptions as errors
from redis.asyncio import SSLConnection
from redis.asyncio.sentinel import MasterNotFoundError
from redis_stage import LONG, Wire, eventually, is_back

import stores
from dovetail.errors import SetupError
from dovetail.state.base import StoreUnavailable
from dovetail.state.redis import PAGE_BYTES, RedisAddress, RedisState


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stores.StoreServer]:
    stores.demand()
    server = stores.StoreServer(tmp_path_factory.mktemp("store"))
    yield server
    server.kill()


@pytest.fixture
def prefix() -> str:
    return uuid.uuid4().hex


@pytest.fixture
async def backend(store: stores.StoreServer, prefix: str) -> AsyncIterator[RedisState]:
    state = RedisState(store.url, prefix=prefix)
    yield state
    await state.close()


@pytest.fixture
async def other(store: stores.StoreServer, prefix: str) -> AsyncIterator[RedisState]:
    """Another worker's."""
    state = RedisState(store.url, prefix=prefix)
    yield state
    await state.close()


@pytest.fixture
def elapse() -> Elapse:
    return asyncio.sleep


class TestRedisState(BackendContract):
    """Everything of the contract."""

    wakes_at_first = True


class TestTwoWorkers:
    async def test_prefixes_keep_servers_apart(
        self, backend: RedisState, store: stores.StoreServer, prefix: str
    ) -> None:
        stranger = RedisState(store.url, prefix=prefix + "2")
        listener = await subscribed(stranger, "topic")
        await backend.put("key", b"value", ttl=LONG)
        await fill(backend, "log", 1)
        await backend.publish("topic")
        assert await stranger.get("key") is None
        assert (await stranger.read("log", 0)).last == 0
        assert await receives_nothing(listener)
        await stranger.close()

    async def test_nothing_is_lost_before_a_subscription_stands(self, backend: RedisState, other: RedisState) -> None:
        """The other worker publishes before the subscription of the listener has reached the store."""
        await asyncio.gather(backend.check(), other.check())
        for n in range(200):
            with contextlib.closing(backend.listen([f"topic {n}"])) as listener:
                await other.publish(f"topic {n}")
                assert await received(listener) == {f"topic {n}"}

    async def test_only_topics_with_listeners_are_subscribed(
        self, backend: RedisState, store: stores.StoreServer, prefix: str
    ) -> None:
        def channels() -> int:
            return store.command("PUBSUB", "CHANNELS", f"{prefix}*").count(prefix.encode())

        listeners = [backend.listen([f"topic {n}", "shared"]) for n in range(1200)]  # more than one batch
        await eventually(lambda: store.command("PUBSUB", "NUMSUB", f"{prefix}:t/shared").endswith(b":1\r\n"))
        await eventually(lambda: channels() == 1201)
        for listener in listeners[1:]:
            listener.close()
        await eventually(lambda: channels() == 2)
        listeners[0].close()
        await eventually(lambda: channels() == 0)

    async def test_all_streams_of_a_worker_may_read_at_once(self, backend: RedisState) -> None:
        await fill(backend, "changes", 1)
        pages = await asyncio.gather(*(backend.read("changes", 0) for _ in range(2_500)))
        assert {page.last for page in pages} == {1}


class TestLostAnswers:
    async def test_calls_that_are_given_up_leave_no_answers_behind(self, backend: RedisState) -> None:
        for n in range(20):
            await backend.put(f"key {n}", b"%d" % n, ttl=LONG)
        chance = random.Random(7)

        async def get(n: int) -> None:
            found = await backend.get(f"key {n}")
            assert found is not None
            assert found.value == b"%d" % n

        for _ in range(15):
            tasks = [asyncio.create_task(get(n % 20)) for n in range(80)]
            await asyncio.sleep(chance.random() * 0.01)
            for task in chance.sample(tasks, 40):
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} <= {type(None), asyncio.CancelledError}

    async def test_what_can_not_be_asked_twice_is_not(self, store: stores.StoreServer, prefix: str) -> None:
        async with Wire(store.port).open() as wire:
            state = RedisState(wire.url, prefix=prefix)
            assert await state.add("counter", 1, LONG) == 1
            await state.put("gone", b"", ttl=LONG)
            for text, attempt in (
                (b"counter", lambda: state.add("counter", 1, LONG)),
                (b"claimed", lambda: state.claim("claimed", b"mine", LONG)),
                (b"new", lambda: state.put("new", b"", ttl=LONG, if_version=0)),
                (b"gone", lambda: state.delete("gone")),
                (b"appended", lambda: state.append("log", b"appended", keep=9, ttl=LONG)),
            ):
                wire.cut_after = text
                with pytest.raises(StoreUnavailable):
                    await attempt()
            assert wire.cuts == 5
            assert (await state.read("log", 0)).last == 1
            assert await state.add("counter", 1, LONG) == 3
            assert (await state.get("claimed")).value == b"mine"
            assert await state.delete("gone") is False
            await state.close()

    async def test_one_pipeline_does_not_carry_everything_that_waits(
        self, store: stores.StoreServer, prefix: str
    ) -> None:
        """Else what is too much for one would be lost with all the rest."""
        async with Wire(store.port).open() as wire:
            state = RedisState(wire.url, prefix=prefix)
            await state.check()
            wire.cut_after = b"counter/249"
            calls = [state.add(f"counter/{n}", 1, LONG) for n in range(250)]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert outcomes[:200] == [1] * 200
            assert isinstance(outcomes[-1], StoreUnavailable)
            await state.close()

    async def test_what_can_be_asked_twice_is(self, store: stores.StoreServer, prefix: str) -> None:
        async with Wire(store.port).open() as wire:
            state = RedisState(wire.url, prefix=prefix)
            await state.put("key", b"old", ttl=LONG)
            for attempt in (
                lambda: state.put("key", b"value", ttl=LONG),
                lambda: state.get("key"),
                lambda: state.touch("key", LONG),
            ):
                wire.cut_after = b":k/key"
                assert await attempt()
            assert wire.cuts == 3
            await state.close()


class TestWhatLiesThere:
    async def test_all_but_the_counter_expires(
        self, backend: RedisState, store: stores.StoreServer, prefix: str
    ) -> None:
        await backend.put("key", b"", ttl=LONG)
        await backend.add("counter", 1, LONG)
        await fill(backend, "log", 1)
        await backend.publish("topic")
        for name in ("k/key", "k/counter", "l/log"):
            assert int(store.command("PTTL", f"{prefix}:{name}")[1:]) > 0
        assert store.command("PTTL", f"{prefix}:n") == b":-1\r\n"

    async def test_versions_outlive_the_loss_of_all_data(
        self, backend: RedisState, other: RedisState, store: stores.StoreServer
    ) -> None:
        version = await backend.put("key", b"old", ttl=LONG)
        store.command("FLUSHALL")
        assert await other.put("key", b"new", ttl=LONG) > version

    async def test_a_page_has_bounds(self, backend: RedisState) -> None:
        data = bytes(PAGE_BYTES // 3)
        for _ in range(8):
            await backend.append("log", data, keep=100, ttl=LONG)
        got: list[int] = []
        pages = 0
        while page := (await backend.read("log", len(got), 100)).records:
            got.extend(record.id for record in page)
            pages += 1
        assert got == list(range(1, 9))
        assert pages == 2


class TestLoopsAndProcesses:
    def test_one_loop_after_another(self, store: stores.StoreServer, prefix: str) -> None:
        """Made before there is one, and never closed."""
        before = clients(store)
        state = RedisState(store.url, prefix=prefix)
        listener = state.listen(["topic"])

        async def use() -> int:
            total = await state.add("counter", 1, LONG)
            await state.publish("topic")
            assert await received(listener) == {"topic"}
            return total

        assert [asyncio.run(use()) for _ in range(3)] == [1, 2, 3]
        assert clients(store) == before

    async def test_close(self, store: stores.StoreServer, prefix: str) -> None:
        before = clients(store)
        state = RedisState(store.url, prefix=prefix)
        await asyncio.gather(*(state.add("counter", 1, LONG) for _ in range(20)))
        assert clients(store) > before
        calls = [asyncio.create_task(state.add("counter", 1, LONG)) for _ in range(250)]  # more than one pipeline
        await asyncio.sleep(0)
        calls[-1].cancel()
        await state.close()
        await state.close()
        outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 3)
        assert {type(outcome) for outcome in outcomes[:100]} <= {int, StoreUnavailable}
        assert {type(outcome) for outcome in outcomes[100:-1]} == {StoreUnavailable}
        assert isinstance(outcomes[-1], asyncio.CancelledError)
        await eventually(lambda: clients(store) == before)
        with pytest.raises(StoreUnavailable, match="closed"):
            await state.get("counter")
        never_used = RedisState(store.url, prefix=prefix)
        await never_used.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            await never_used.check()
        just_used = RedisState(store.url, prefix=prefix)
        call = asyncio.create_task(just_used.check())
        await asyncio.sleep(0)  # it waits for a connection that is not even begun
        await just_used.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            await call


def clients(store: stores.StoreServer) -> int:
    kinds = ("normal", "pubsub")
    return sum(store.command("CLIENT", "LIST", "TYPE", kind).count(b"addr=127") for kind in kinds)


# ── URLs: what they mean, what is wrong with them, and that no text shows what is secret in them ──


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
        ("redis+sentinel://a:1,[::1]:2/main/3", "redis+sentinel://a:1,[::1]:2/main/3", {"db": 3}),
        ("redis+sentinel://me:p%40w@a,b/m%20x/0", "redis+sentinel://a,b/m%20x/0", {"password": "p@w"}),
        ("rediss+sentinel://a/main?sentinel_password=pw", "rediss+sentinel://a/main", {"sentinel_password": "pw"}),
    ],
)
def test_urls(url: str, shown: str, options: dict[str, object]) -> None:
    address = RedisAddress(url)
    assert address.shown == shown
    assert options.items() <= address.options.items()
    assert bool(address.sentinels) is ("sentinel:" in url)
    assert issubclass(address.connection_pool().connection_class, SSLConnection) is url.startswith("rediss")


def test_sentinels() -> None:
    address = RedisAddress("redis+sentinel://a:1,[::1],b/m%20x/0")
    assert (address.sentinels, address.service) == ([("a", 1), ("::1", 26379), ("b", 26379)], "m x")


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


@pytest.mark.parametrize(
    ("failure", "shown"),
    [
        (errors.ConnectionError("no adm or adm-1n of\n  adm-1n-2 \t here"), "no *** or *** of *** here"),
        (OSError("by bob, who has b0b-pw"), "by ***, who has ***"),
        (errors.ConnectionError("EVAL refused, with args adm 1 2"), "EVAL refused"),
        (errors.AuthenticationError("WRONGPASS for adm"), "it wants another user or password"),
        (MasterNotFoundError("of 'main' by Sentinel(bob)"), "no sentinel knows its master"),
        (OSError("x" * 201), "x" * 200),
        (TimeoutError(), "it does not answer"),
    ],
)
def test_no_failure_shows_a_secret(failure: Exception, shown: str) -> None:
    """Even if one secret begins with another."""
    options = "sentinel_username=bob&sentinel_password=b0b-pw&ssl_password=adm-1n-2"
    assert RedisAddress(f"rediss+sentinel://adm:adm-1n@a/main?{options}").scrubbed(failure) == shown


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
    with pytest.raises(StoreUnavailable) as caught:
        await state.check()
    for secret in ("wr0ng", "nobody-knows-me", SECRET):
        assert secret not in f"{caught.value!r} {caplog.text}"
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
    with pytest.raises(StoreUnavailable):
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
        with pytest.raises(StoreUnavailable):
            await state.put("key", b"value", ttl=LONG, if_version=0)
        await eventually(lambda: is_back(state), 30)
        assert await asyncio.wait_for(listener.wait(), 5) == {"topic"}
        assert await state.put("key", b"newer", ttl=LONG)
        assert state.outages == 1
    finally:
        await state.close()
        for server in (sentinel, replica, master):
            server.kill()
