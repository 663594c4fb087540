"""The official JSON-Schema-Test-Suite for 2020-12: required, optional and format cases, each one run or named here."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from dovetail.errors import SetupError
from dovetail.schema.validate import Validator

pytestmark = pytest.mark.slow  # real processes, files or a large suite: part of `make test`, not of `make check`

SUITE = Path(__file__).parents[2] / ".cache/suites/jsonschema-4.26.0/json/tests/draft2020-12"
REMOTE = "http://localhost:1234/"  # where the suite's other documents would be; nothing is ever fetched

# Tests of cases whose schema needs another document, by file: all of them are refused.
REFUSED = {
    "dynamicRef.json": 13, "refRemote.json": 31, "vocabulary.json": 5, "optional/cross-draft.json": 1,
    "optional/format-assertion.json": 4,
}  # fmt: skip

# The specification lets a format be a mere note or a check; it is a check here, so these say the opposite.
FORMATS_ARE_CHECKED = "only an annotation by default"


def files() -> list[str]:
    return sorted(path.relative_to(SUITE).as_posix() for path in SUITE.rglob("*.json"))


def cases(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((SUITE / name).read_text())
    return found


def test_the_suite_is_here() -> None:
    if not SUITE.is_dir():
        message = "The JSON Schema test suite is missing, so 1,906 cases are NOT checked: run scripts/fetch_suites.py"
        assert os.environ.get("CI") != "true", message
        pytest.skip(message)
    tests = [test for name in files() for case in cases(name) for test in case["tests"]]
    assert len(tests) == 1906
    assert sum(test["description"].endswith(FORMATS_ARE_CHECKED) for test in tests) == 19


@pytest.mark.seed("S3-12", "S4-19")
@pytest.mark.rule("JS-1", "JS-2", "JS-5", "JS-7")
@pytest.mark.parametrize("name", files())
def test_official_cases(name: str) -> None:
    refused = 0
    for case in cases(name):
        try:
            validator = Validator(case["schema"], where=name)
        except SetupError as error:
            assert REMOTE in json.dumps(case["schema"])
            assert re.search("never fetched|not a supported dialect", str(error))  # noqa: PT017
            refused += len(case["tests"])
            continue
        for test in case["tests"]:
            expected = test["valid"] and not test["description"].endswith(FORMATS_ARE_CHECKED)
            what = f"{name}: {case['description']}: {test['description']}"
            assert validator.is_valid(test["data"]) == expected, what
            problems = validator.problems(test["data"])
            assert bool(problems) != expected, f"{what}: {problems}"
    assert refused == REFUSED.get(name, 0)
