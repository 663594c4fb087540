"""The official JSON-Schema-Test-Suite for 2020-12: required, optional and format cases, each one run or named here."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dovetail.errors import SetupError
from dovetail.registry.validate import Validator

pytestmark = pytest.mark.slow  # real processes, files or a large suite: part of `make test`, not of `make check`

SUITE = Path(__file__).parents[2] / ".cache/suites/jsonschema-4.26.0/json/tests/draft2020-12"
REMOTE = "http://localhost:1234/"  # where the suite's other documents would be; nothing is ever fetched

# Cases whose schema needs another document, by file: all of them must be refused. {file: {case: number of tests}}
REFUSED = {
    "dynamicRef.json": {
        "strict-tree schema, guards against misspelled properties": 2,
        "tests for implementation dynamic anchor and reference link": 3,
        "$ref and $dynamicAnchor are independent of order - $defs first": 3,
        "$ref and $dynamicAnchor are independent of order - $ref first": 3,
        "$ref to $dynamicRef finds detached $dynamicAnchor": 2,
    },
    "refRemote.json": {
        "remote ref": 2,
        "fragment within remote ref": 2,
        "anchor within remote ref": 2,
        "ref within remote ref": 2,
        "base URI change": 2,
        "base URI change - change folder": 2,
        "base URI change - change folder in subschema": 2,
        "root ref in remote ref": 3,
        "remote ref with ref to defs": 2,
        "Location-independent identifier in remote ref": 2,
        "retrieved nested refs resolve relative to their URI not $id": 2,
        "remote HTTP ref with different $id": 2,
        "remote HTTP ref with different URN $id": 2,
        "remote HTTP ref with nested absolute ref": 2,
        "$ref to $ref finds detached $anchor": 2,
    },
    "vocabulary.json": {
        "schema that uses custom metaschema with with no validation vocabulary": 3,
        "ignore unrecognized optional vocabulary": 2,
    },
    "optional/cross-draft.json": {"refs to historic drafts are processed as historic drafts": 1},
    "optional/format-assertion.json": {
        "schema that uses custom metaschema with format-assertion: false": 2,
        "schema that uses custom metaschema with format-assertion: true": 2,
    },
}

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
    assert sum(len(case["tests"]) for name in files() for case in cases(name)) == 1906


@pytest.mark.seed("S3-12", "S4-19")
@pytest.mark.rule("JS-1", "JS-2")
@pytest.mark.parametrize("name", files())
def test_official_cases(name: str) -> None:
    checked = 0
    for case in cases(name):
        if case["description"] in REFUSED.get(name, {}):
            continue
        validator = Validator(case["schema"], where=name)
        for test in case["tests"]:
            expected = test["valid"] and not test["description"].endswith(FORMATS_ARE_CHECKED)
            what = f"{name}: {case['description']}: {test['description']}"
            assert validator.is_valid(test["data"]) == expected, what
            problems = validator.problems(test["data"])
            assert bool(problems) != expected, f"{what}: {problems}"
            checked += 1
    assert checked == sum(len(case["tests"]) for case in cases(name)) - sum(REFUSED.get(name, {}).values())


@pytest.mark.rule("JS-2", "JS-5", "JS-7")
@pytest.mark.parametrize("name", sorted(REFUSED) if SUITE.is_dir() else [])
def test_other_documents_are_refused(name: str) -> None:
    found = {case["description"]: case for case in cases(name) if case["description"] in REFUSED[name]}
    assert {text: len(case["tests"]) for text, case in found.items()} == REFUSED[name]
    for case in found.values():
        assert REMOTE in json.dumps(case["schema"])
        with pytest.raises(SetupError, match=r"never fetched|not a supported dialect"):
            Validator(case["schema"], where=name)


def test_the_formats_that_are_checked_are_counted() -> None:
    if SUITE.is_dir():
        tests = [test for name in files() for case in cases(name) for test in case["tests"]]
        assert sum(test["description"].endswith(FORMATS_ARE_CHECKED) for test in tests) == 19
