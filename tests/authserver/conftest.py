"""An authorization server without a socket, and a program and a browser that visit it."""

import time
from collections.abc import AsyncIterator

import pytest

from authserver_stage import Browser, Program, Stage
from identity_provider import IdentityProvider, provider
from issuer_stage import Clock
from provider_stage import REDIRECT_URI, SIGN_INS


@pytest.fixture
async def upstream() -> AsyncIterator[IdentityProvider]:
    """An identity provider that names itself in its responses."""
    async with provider("keycloak", REDIRECT_URI, Clock(time.time())) as served:
        yield served


@pytest.fixture
def provider_stage(upstream: IdentityProvider) -> Stage:
    return Stage(clock=upstream.clock, sign_in=SIGN_INS["keycloak"](upstream, {}))


@pytest.fixture
def stage(request: pytest.FixtureRequest) -> Stage:
    """Users have passwords; or sign in at an identity provider, in tests that run EITHER_WAY."""
    is_here = getattr(request, "param", "passwords") == "passwords"
    return Stage() if is_here else request.getfixturevalue("provider_stage")  # type: ignore[no-any-return]


@pytest.fixture
def program(stage: Stage) -> Program:
    return Program(stage)


@pytest.fixture
def browser(stage: Stage) -> Browser:
    return Browser(stage)
