"""A log to which one worker appends each record once, whatever the store says or does not say."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.state.base import Conflict, LogPage, NoRoom, StoreTrouble
from dovetail.state.memory import MemoryState
from dovetail.transports.sure_log import Draft, Forgotten, Replaced, SureLog

FATES = ["kept", "kept without a word", "lost", "refused", "kept later"]


class Store(MemoryState):
    """`fates` says what becomes of the next appends, `reads` of the next reads."""

    def __init__(self) -> None:
        super().__init__()
        self.fates: list[str] = []
        self.reads: list[bool] = []
        self.on_the_way: list[tuple[bytes, dict[str, Any]]] = []
        self.sent = 0

    async def append(self, log: str, data: bytes, **options: Any) -> int:
        self.sent += 1
        fate = self.fates.pop(0) if self.fates else "kept"
        if fate == "lost":
            raise StoreTrouble
        if fate == "refused":
            raise NoRoom("full")
        if fate == "kept later":
            self.on_the_way.append((data, options))
            raise StoreTrouble
        await self.arrive(log)
        number = await super().append(log, data, **options)
        if fate == "kept without a word":
            raise StoreTrouble
        return number

    async def arrive(self, log: str) -> None:
        for data, options in self.on_the_way:
            with suppress(Conflict):  # nobody is there any more to hear of it
                await super().append(log, data, **options)
        self.on_the_way.clear()

    async def read(self, log: str, after: int, limit: int = 100) -> LogPage:
        if self.reads and not self.reads.pop(0):
            raise StoreTrouble
        return await super().read(log, after, limit)

    async def records(self) -> list[bytes]:
        return [record.data for record in (await MemoryState.read(self, "log", 0, 1000)).records]


@pytest.fixture
def store() -> Store:
    return Store()


async def append(log: SureLog, draft: Draft) -> int:
    return await log.append(draft, ttl=60)


async def fails(log: SureLog, draft: Draft) -> None:
    with pytest.raises(StoreTrouble):
        await append(log, draft)


async def test_nothing_is_read_while_all_is_well(store: Store) -> None:
    store.reads = [False]
    log = SureLog(store, "log")
    assert [await append(log, Draft(data)) for data in (b"a", b"b", b"a")] == [1, 2, 3]
    assert len(store.reads) == 1


@pytest.mark.parametrize("fate", ["lost", "kept without a word", "kept later"])
async def test_what_is_tried_again_is_there_once(store: Store, fate: str) -> None:
    log, draft = SureLog(store, "log"), Draft(b"a")
    store.fates = [fate]
    await fails(log, draft)
    assert await append(log, draft) == 1
    assert await append(log, Draft(b"b")) == 2
    assert await store.records() == [b"a", b"b"]


async def test_two_that_are_equal_are_two(store: Store) -> None:
    log = SureLog(store, "log")
    store.fates = ["kept without a word"]
    await fails(log, Draft(b"same"))
    assert await append(log, Draft(b"same")) == 2


async def test_nothing_goes_out_while_it_is_not_known_what_has_happened(store: Store) -> None:
    log = SureLog(store, "log")
    store.fates, store.reads = ["kept without a word"], [False] * 2000
    for number in range(2001):
        await fails(log, Draft(b"%d" % number))
    assert store.sent == 1
    assert await append(log, Draft(b"end")) == 2
    assert await store.records() == [b"0", b"end"]


async def test_one_that_is_given_up_is_not_taken_for_another(store: Store) -> None:
    """The first is there; the second never went out, since nothing could be read."""
    log, second = SureLog(store, "log"), Draft(b"second")
    store.fates, store.reads = ["kept without a word"], [False]
    await fails(log, Draft(b"first"))
    await fails(log, second)
    assert await append(log, second) == 2
    assert await store.records() == [b"first", b"second"]


async def test_one_that_arrives_late_is_one_of_ours(store: Store) -> None:
    log, second = SureLog(store, "log"), Draft(b"second")
    store.fates = ["kept later"]
    await fails(log, Draft(b"first"))
    await fails(log, second)  # there was nothing to be read, and then it arrived
    assert await append(log, second) == 2
    assert await store.records() == [b"first", b"second"]


@pytest.mark.parametrize("fate", ["lost", "kept without a word"])
async def test_other_data_take_the_place_of_what_is_not_there(store: Store, fate: str) -> None:
    log, draft = SureLog(store, "log"), Draft(b"a large answer")
    store.fates = [fate]
    await fails(log, draft)
    draft.data = b"none"
    assert await append(log, draft) == 1
    assert await store.records() == [b"none" if fate == "lost" else b"a large answer"]


async def test_not_even_if_that_was_on_its_way_for_long(store: Store) -> None:
    log, draft = SureLog(store, "log"), Draft(b"a large answer")
    store.fates = ["kept later", "lost"]
    await fails(log, draft)
    draft.data = b"none"
    await fails(log, draft)
    assert await append(log, draft) == 1
    assert await store.records() == [b"a large answer"]


async def test_what_fails_again_and_again_is_remembered_once(store: Store) -> None:
    log, draft = SureLog(store, "log"), Draft(b"a large answer")
    store.fates = ["lost"] * 5
    for _ in range(4):
        await fails(log, draft)
    assert log._unsure == (draft.digest,)
    assert draft.digest is draft.digest
    draft.data = b"none"
    await fails(log, draft)
    assert set(log._unsure) == draft.sent
    assert len(draft.sent) == 2


@pytest.mark.parametrize("fate", ["kept", "lost"])
async def test_another_writer_is_noticed(store: Store, fate: str) -> None:
    log, draft = SureLog(store, "log"), Draft(b"answer")
    await append(log, Draft(b"first"))
    if fate == "lost":
        store.fates = ["lost"]
        await fails(log, draft)
    await store.append("log", b"worker lost", keep=1000, ttl=60, if_last=1)
    with pytest.raises(Replaced):
        await append(log, draft)


@pytest.mark.parametrize("unsure", [False, True])
async def test_a_log_that_is_gone_takes_nothing_more(store: Store, unsure: bool) -> None:
    log, draft = SureLog(store, "log"), Draft(b"second")
    await append(log, Draft(b"first"))
    if unsure:
        store.fates = ["lost"]
        await fails(log, draft)
    await store.drop("log")
    with pytest.raises(Forgotten):
        await append(log, draft)
    assert await store.records() == []


async def test_a_writer_that_is_cancelled_does_not_know_either(store: Store) -> None:
    log, draft, kept = SureLog(store, "log"), Draft(b"first"), asyncio.Event()
    written = store.append

    async def slowly(*arguments: Any, **options: Any) -> int:
        number = await written(*arguments, **options)
        kept.set()
        await asyncio.sleep(60)
        return number

    store.append = slowly  # type: ignore[method-assign]
    writing = asyncio.create_task(append(log, draft))
    await kept.wait()
    writing.cancel()
    await asyncio.wait([writing])
    store.append = written  # type: ignore[method-assign]
    assert await append(log, draft) == 1
    assert await store.records() == [b"first"]


@given(st.lists(st.sampled_from(FATES), max_size=12), st.lists(st.booleans(), max_size=12), st.lists(st.booleans()))
def test_whatever_happens_numbers_are_right(fates: list[str], reads: list[bool], patient: list[bool]) -> None:
    """Some drafts are tried until they are there, others once: what has a number is there, once, in order."""

    async def run() -> None:
        store = Store()
        log = SureLog(store, "log")
        store.fates, store.reads = list(fates), list(reads)
        numbers: dict[bytes, int] = {}
        for each, again in enumerate([*patient[:6], True]):
            draft = Draft(b"%d" % each)
            for _ in range(40):
                try:
                    numbers[draft.data] = await append(log, draft)
                    break
                except StoreTrouble:
                    if not again:
                        break
                except NoRoom:
                    break
            else:
                pytest.fail("it never ends")
        records = await store.records()
        assert sorted(set(records), key=int) == records
        assert all(records[number - 1] == data for data, number in numbers.items())
        assert log.last == len(records)

    asyncio.run(run())
