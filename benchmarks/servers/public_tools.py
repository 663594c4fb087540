"""The tools that are searched: those of ten public servers, as scripts/fetch_tools.py has listed them.

BENCH_TOOLS says how many there are in all. Without it there are just these; else the same ones come again and again,
under other names. Imports no framework.
"""

import json
import os
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).resolve().parent.parent.parent / ".cache" / "public_servers" / "tools.json"


class PublicTool(NamedTuple):
    name: str
    description: str
    input_schema: dict[str, Any]


def wanted() -> list[PublicTool]:
    """So many tools, or just those that there are."""
    real = [PublicTool(each["name"], each["description"], each["inputSchema"]) for each in json.loads(FILE.read_text())]
    copies = (tool._replace(name=f"again{number}_{tool.name}") for number in count(1) for tool in real)
    return list(islice(chain(real, copies), int(os.environ.get("BENCH_TOOLS", len(real)))))
