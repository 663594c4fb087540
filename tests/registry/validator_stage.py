"""What a schema finds wrong with a value, and why a schema is refused."""

import functools
from collections.abc import Callable
from typing import Any

import pytest

from dovetail.errors import SetupError
from dovetail.registry.validate import Validator


def problems(schema: Any, value: Any, **options: Any) -> list[str]:
    validator = Validator(schema, where="tool")
    found = validator.problems(value, **options)
    assert validator.is_valid(value) == (not found)
    return found


def refused(schema: Any, **options: Any) -> str:
    with pytest.raises(SetupError) as caught:
        Validator(schema, where="tool search, input_schema", **options)
    assert str(caught.value).startswith("tool search, input_schema: ")
    return str(caught.value)


def nested(levels: int, wrap: Callable[[Any], Any], inner: Any) -> Any:
    return functools.reduce(lambda value, _: wrap(value), range(levels), inner)


D7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
D4 = {"$schema": "http://json-schema.org/draft-04/schema#"}
