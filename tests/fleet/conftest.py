"""Connections to the workers of a fleet."""

from collections.abc import AsyncIterator

import aiohttp
import pytest
from fleet_client import connections


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with connections() as http:
        yield http
