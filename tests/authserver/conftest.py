"""An authorization server without a socket, and a program and a browser that visit it."""

import pytest

from authserver_stage import Browser, Program, Stage


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def program(stage: Stage) -> Program:
    return Program(stage)


@pytest.fixture
def browser(stage: Stage) -> Browser:
    return Browser(stage)
