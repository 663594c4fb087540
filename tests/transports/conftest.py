"""Real server processes for the tests of the transports."""

from collections.abc import Iterator

import pytest
from served import Start, programs


@pytest.fixture
def start() -> Iterator[Start]:
    with programs() as start:
        yield start
