"""What a test needs and does not find."""

import os

import pytest


def demand(reason: str | None) -> None:
    """Skip loudly if there is a reason why something is missing; in CI its absence is a failure."""
    if reason is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI: {reason}")
    pytest.skip(f"! {reason}")
