"""What is remembered of a grant: honest programs keep it whatever the store does, and a copy that is used ends it."""

import asyncio
import itertools
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from authserver_stage import SECRET, Clock, Program, Stage, basic
from dovetail.authserver.endpoints import OAuthRefusal
from dovetail.authserver.storage import AuthStore, Keyring
from dovetail.authserver.tokens import GRACE_SECONDS, Grant, Target, TokenIssuer
from dovetail.engine.secrets import Secrets
from dovetail.state.base import NoRoom, StoreTrouble
from dovetail.state.memory import MemoryState
from dovetail.state.sqlite import SqliteState

ISSUER = "https://login.example.com"
MOST_FAILURES = 4
WRITES = ("put", "claim", "add", "delete")


class Failing(MemoryState):
    """Far away; its next writes go as `plan` says: they fail before anything was done, or after, or not at all."""

    shared = True

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock=clock)
        self.plan: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return self._as_planned(found) if name in WRITES else found

    def _as_planned(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def write(*arguments: Any, **options: Any) -> Any:
            await asyncio.sleep(0)
            how = self.plan.pop() if self.plan else "well"
            if how == "before":
                raise StoreTrouble
            outcome = await call(*arguments, **options)
            if how == "after":
                raise StoreTrouble
            return outcome

        return write


class Desk:
    """The grants of one server, one of them, and the program that has it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.state = Failing(self.clock)
        store = AuthStore(self.state, ISSUER)
        self.grants = TokenIssuer(
            issuer=ISSUER, target=Target("https://notes.example.com/mcp", {}), store=store,
            keyring=Keyring(store, Secrets(), self.clock), access_seconds=600, refresh_seconds=86_400,
        )  # fmt: skip
        self.grant = Grant(id="g", client="app", user="ann", mark="m", scopes=[], ends=self.clock.now + 86_400)

    async def use(self, number: int) -> str:
        try:
            await self.grants.use(self.grant, number)
        except StoreTrouble:
            return "trouble"
        except OAuthRefusal:
            return "refused"
        return "used"

    async def refresh(self, number: int, calls: int = 1) -> list[str]:
        """As honest programs do: maybe several calls together, and again after trouble."""
        outcomes = ["trouble"] * calls
        for _ in range(MOST_FAILURES + 1):
            again = await asyncio.gather(*(self.use(number) for outcome in outcomes if outcome == "trouble"))
            outcomes = [outcome for outcome in outcomes if outcome != "trouble"] + again
            if "trouble" not in outcomes:
                break
            self.clock.now += GRACE_SECONDS / (MOST_FAILURES + 2)
        return outcomes

    async def refresh_all(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            assert await self.refresh(number) == ["used"]
            self.clock.now += GRACE_SECONDS + 1


failures = st.lists(st.sampled_from(["before", "after"]), max_size=MOST_FAILURES)
refreshes = st.lists(st.tuples(failures, st.integers(1, 3), st.sampled_from([0.0, 1.0, 60.0])), max_size=5)


@given(refreshes)
def test_no_failure_of_the_store_ends_an_honest_grant(steps: list[tuple[list[str], int, float]]) -> None:
    async def run() -> None:
        desk = Desk()
        assert await desk.use(0) == "used"
        for number, (plan, calls, pause) in enumerate(steps, start=1):
            desk.state.plan = list(plan)
            assert await desk.refresh(number, calls) == ["used"] * calls
            desk.state.plan = []
            desk.clock.now += pause
        assert not await desk.grants.is_revoked("g")

    asyncio.run(run())


@given(used=st.integers(1, 4), back=st.integers(1, 4), pause=st.sampled_from([0.0, GRACE_SECONDS + 1]), plan=failures)
def test_a_copy_that_is_used_ends_the_grant(used: int, back: int, pause: float, plan: list[str]) -> None:
    """`back` uses ago; the last one may be repeated for a moment, unless it was the code."""

    async def run() -> None:
        desk = Desk()
        await desk.refresh_all(range(used - 1))
        assert await desk.use(used - 1) == "used"
        desk.clock.now += pause
        number = max(used - back, 0)
        may_repeat = number == used - 1 and number > 0 and not pause
        desk.state.plan = list(plan)
        assert (await desk.refresh(number)) == ["used" if may_repeat else "refused"]
        assert await desk.grants.is_revoked("g") is not may_repeat
        desk.state.plan = []
        assert await desk.use(used) == ("used" if may_repeat else "refused")

    asyncio.run(run())


async def test_a_revocation_meets_a_use() -> None:
    """Whichever comes first: at the end it is revoked."""
    for order in itertools.permutations(range(3)):
        desk = Desk()
        assert await desk.use(0) == "used"
        acts = [desk.grants.revoke("g", desk.clock.now), desk.use(1), desk.use(1)]
        await asyncio.gather(*(acts[each] for each in order))
        assert await desk.grants.is_revoked("g")
        assert await desk.use(2) == "refused"


@pytest.mark.parametrize("shop", ["memory", "sqlite"])
async def test_strangers_cannot_fill_what_grants_need(tmp_path: Path, shop: str) -> None:
    """Codes are changed for tokens, and tokens taken back, whatever was registered or tried meanwhile."""
    state = MemoryState(max_entries=60) if shop == "memory" else SqliteState(tmp_path / "state.db", max_bytes=400_000)
    stage = Stage(state=state)
    program = Program(stage)
    code = await program.code()
    of_program = (await stage.token(basic("ci", SECRET), grant_type="client_credentials")).json["access_token"]
    strangers = AuthStore(state, ISSUER)
    with suppress(NoRoom):
        for number in range(1000):
            await strangers.put("client", f"a stranger's {number}", bytes(1000), 60)
    with pytest.raises(NoRoom):
        await strangers.put("client", "one more", bytes(1000), 60)
    tokens = (await program.redeem(code)).json
    assert (await program.refresh(tokens["refresh_token"])).status == 200
    assert (await stage.post("revoke", {"token": of_program}, basic("ci", SECRET))).status == 200
    assert not await stage.may_call(of_program)
    await state.close()


DAY = 86_400.0


@pytest.mark.parametrize("which", ["access_token", "refresh_token"])
@pytest.mark.parametrize("client", ["ci", "app"])
async def test_tokens_of_a_time_when_they_lived_longer_stay_revoked(client: str, which: str) -> None:
    before = Stage(access_seconds=DAY, refresh_seconds=2 * DAY)
    if client == "ci":
        issued = (await before.token(basic("ci", SECRET), grant_type="client_credentials")).json
    else:
        issued = await Program(before).tokens()
    now = Stage(access_seconds=600, refresh_seconds=700, state=before.state)
    form = {"token": issued.get(which, issued["access_token"]), "client_id": client}
    assert (await now.post("revoke", form, basic("ci", SECRET) if client == "ci" else None)).status == 200
    before.clock.now += DAY - 10
    assert not await before.may_call(issued["access_token"])
