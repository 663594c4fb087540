"""The judge of the programs that tests start: what it objects to fails the test."""

import json
import sys
from pathlib import Path

import pytest

import official
from official import COMPLAINT
from processes import META, PROGRAM, HttpProgram

TESTS = Path(__file__).parent.parent
STRICTER = f"""
import runpy, sys
sys.path.insert(0, {str(TESTS)!r})
import official
official.RESULTS["tools/list"] = "ListPromptsResult"
sys.argv[1:] = [{{options!r}}]
runpy.run_path({str(PROGRAM)!r}, run_name="__main__")
"""


@pytest.mark.parametrize("options", [{}, pytest.param({"workers": 2}, marks=pytest.mark.slow)])
@pytest.mark.skipif(sys.platform == "win32", reason="signals and fork")
def test_what_a_program_says_is_judged(options: dict[str, int]) -> None:
    official.demand()
    given = json.dumps({"transport": "http", **options})
    program = HttpProgram([sys.executable, "-c", STRICTER.format(options=given)])
    try:
        assert program.ready().call("echo", text="well formed")["content"]
        assert COMPLAINT not in program.said
        assert program.post("tools/list", {"_meta": META}).read()
        program.until_logged(COMPLAINT)
    finally:
        with pytest.raises(AssertionError, match=COMPLAINT):
            program.close()


@pytest.mark.parametrize("code", [-32002, -32042, -32000, -32602, 1234])
def test_codes_and_questions_that_the_newest_revision_forbids_are_objected_to(code: int) -> None:
    official.demand()
    witness, older = official.Witness(), official.Witness()
    witness.sent(b'{"id":1,"method":"x","params":{"_meta":{"%b":"2026-07-28"}}}' % official.VERSION_KEY.encode())
    witness.received(b'{"jsonrpc":"2.0","id":1,"error":{"code":%d,"message":"no"}}' % code)
    assert len(witness.problems) == (code in (-32002, -32042, -32000))
    older.session_revision = "2025-11-25"
    for each in (witness, older):
        each.received(b'{"jsonrpc":"2.0","id":1,"method":"roots/list"}')
    assert "roots/list" in str(witness.problems)
    older.assert_clean()
