"""What every server under test offers: the same functions, whoever serves them.

BENCH_TOOL names the tool that is called, BENCH_TOOLS says how many there are in all: the rest is there to be listed.
Neither imports a framework; what needs one (progress, images) each server adds itself.
"""

import os
from typing import Literal

TOOL = os.environ.get("BENCH_TOOL", "add")
TOOLS = int(os.environ.get("BENCH_TOOLS", "1"))
SESSIONS = "BENCH_SESSIONS" in os.environ  # 2025-11-25; else 2026-07-28

STEPS = 10
TEXT = ('A line of plain prose, with a "quoted" word in it, then a new line.\n' * 15_500)[: 1024 * 1024]
IMAGE = bytes(range(256)) * 3072  # 768 KiB, which are 1 MiB in base64

REST = [f"tool_{number:04}" for number in range(1, TOOLS)]


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def add_in_thread(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def text() -> str:
    """A text of 1 MiB."""
    return TEXT


async def search(query: str, limit: int = 10, order: Literal["newest", "oldest"] = "newest") -> list[str]:
    """Search the archive for documents, and list the titles of those that fit best."""
    return [query, order][:limit]
