"""The cost of a call by the number of tools: the same call with 50, 500 and 5,000 tools, and with one.

"mcp-1" is mcp with one tool. Each contender is measured beside itself, so that noise does not pass for a slope.
"""

from contextlib import AbstractContextManager

from benchmarks.case import Case, Round, Settings
from benchmarks.http_call import ARGUMENTS, check_sum
from benchmarks.http_contender import Offer, call, loaded

ALONE = "-1"
CONTENDERS = tuple(name + suffix for name in ("dovetail", "mcp", "fastmcp") for suffix in ("", ALONE))


def _case(tools: int, targets: dict[str, float]) -> Case:
    def opened(contender: str, settings: Settings) -> AbstractContextManager[Round]:
        offer = Offer(tools=1 if contender.endswith(ALONE) else tools)
        return loaded(contender.removesuffix(ALONE), settings, offer, call("add", ARGUMENTS), check_sum)

    return Case(f"catalog-{tools}", f"HTTP call with {tools:,} tools", "calls/s", True, CONTENDERS, opened, targets)


CASES = [_case(50, {}), _case(500, {}), _case(5_000, {"dovetail-1": 0.95})]
