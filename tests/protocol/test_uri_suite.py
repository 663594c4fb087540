"""The public test suite for RFC 6570: expansion of every case, refusal of every malformed one."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.errors import SetupError
from dovetail.protocol.uri_template import Expandable, UriTemplate

FOLDER = Path(__file__).parents[2] / ".cache" / "suites" / "uritemplate-4.2.0" / "tests" / "fixtures"
FILES = ("spec-examples.json", "spec-examples-by-section.json", "extended-tests.json", "negative-tests.json")


def load() -> Iterator[Any]:
    for name in FILES if FOLDER.is_dir() else ():
        groups = json.loads((FOLDER / name).read_text(encoding="utf-8"))
        for title, group in groups.items():
            values = {key: as_text(value) for key, value in group["variables"].items()}
            for template, expected in group["testcases"]:
                yield pytest.param(values, template, expected, id=f"{title}: {template}")


def as_text(value: Any) -> Expandable:
    """Turn the suite's numbers into text: a URI holds nothing else."""
    if isinstance(value, dict):
        return {key: str(item) for key, item in value.items()}
    if isinstance(value, list):
        return [str(item) for item in value]
    return None if value is None else str(value)


CASES = list(load())


@pytest.mark.rule("RES-15")
def test_the_suite_is_here():
    if not CASES:
        message = f"the RFC 6570 suite is missing in {FOLDER}: run scripts/fetch_suites.py"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    assert len(CASES) > 200


@pytest.mark.seed("S2-42", "S3-34")
@pytest.mark.rule("RES-15")
@pytest.mark.parametrize(("values", "template", "expected"), CASES)
def test_the_suite(values: dict[str, Expandable], template: str, expected: str | list[str] | bool):
    if expected is False:
        with pytest.raises((SetupError, ValueError)):
            UriTemplate(template).expand(values)
    else:
        assert UriTemplate(template).expand(values) in ([expected] if isinstance(expected, str) else expected)
