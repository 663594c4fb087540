"""Random histories of six callers: what each sees of state and handles is what a model says, nothing of the others."""

import asyncio
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from http_serving import serving
from http_wire import HttpWire
from state_program import create_server
from state_stage import identify, known, said

PRINCIPALS, SESSIONS, UNKNOWN = ("ann", "bob"), ("session 1", "session 2"), ("unknown 1", "unknown 2")
CALLERS = st.sampled_from([*PRINCIPALS, *SESSIONS, *UNKNOWN])
KEYS, WORDS = st.sampled_from(["a", "b"]), st.sampled_from(["x", "yy"])
PLACES = st.integers(0, 5)  # of the handles that were given out
ACTIONS = st.one_of(
    st.tuples(st.just("note"), CALLERS, KEYS, WORDS),
    st.tuples(st.just("append"), CALLERS, KEYS, WORDS),
    st.tuples(st.sampled_from(["read", "forget"]), CALLERS, KEYS),
    st.tuples(st.just("keys"), CALLERS),
    st.tuples(st.just("fill"), CALLERS, WORDS),
    st.tuples(st.just("put"), CALLERS, PLACES, WORDS),
    st.tuples(st.sampled_from(["look", "empty"]), CALLERS, PLACES),
)


NOT_FOUND, NOT_KNOWN = "There is no Basket", "ctx.state: it is not known whose state this is"


class Model:
    """State by caller, and handles with their owners."""

    def __init__(self) -> None:
        self.state: dict[str, dict[str, str]] = {caller: {} for caller in (*PRINCIPALS, *SESSIONS)}
        self.ids: list[str] = []
        self.baskets: dict[str, tuple[str, list[str]]] = {}

    def of_state(self, action: str, caller: str, key: str = "", value: str = "") -> str:
        """How the answer to a call begins."""
        state = self.state.get(caller)
        if state is None:
            return NOT_KNOWN
        match action:
            case "note":
                state[key] = value
                return ""
            case "append":
                state[key] = state.get(key, "") + value
                return state[key]
            case "read":
                return state.get(key, "-")
            case "forget":
                return "false" if state.pop(key, None) is None else "true"
        return " ".join(sorted(state))

    def of_basket(self, action: str, caller: str, id: str, *item: str) -> str:
        owner, items = self.baskets.get(id, ("deleted", []))
        if owner not in (caller, *UNKNOWN):  # the id of an unknown caller is for each that has it
            return NOT_FOUND
        items += item
        if action == "empty":
            del self.baskets[id]
        return "" if action == "empty" else " ".join(items)


async def play(history: list[tuple[Any, ...]]) -> None:
    model = Model()
    async with serving(create_server(), identify=identify) as app:
        wires = {name: known(app, name) for name in PRINCIPALS}
        wires |= {name: await HttpWire.session(app) for name in SESSIONS}
        wires |= {name: HttpWire(app) for name in UNKNOWN}
        for action, caller, *values in history:
            if action == "fill":
                id = await said(wires[caller], "fill", item=values[0])
                model.ids.append(id)
                model.baskets[id] = (caller, values)
                continue
            if action in ("put", "look", "empty"):
                values[0] = model.ids[values[0]] if values[0] < len(model.ids) else "made up"
                expected, names = model.of_basket(action, caller, *values), ("basket", "item")
            else:
                expected, names = model.of_state(action, caller, *values), ("key", "value")
            text = await said(wires[caller], action, **dict(zip(names, values, strict=False)))
            shown = text[: len(expected)] if expected in (NOT_FOUND, NOT_KNOWN) else text.replace("null", "")
            assert shown == expected, (action, caller, values)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ACTIONS, min_size=5, max_size=40))
def test_callers_never_see_each_others_state_or_handles(history: list[tuple[Any, ...]]) -> None:
    asyncio.run(play(history))
