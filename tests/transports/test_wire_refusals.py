"""What the HTTP server of `run()` says before a request reaches the app: every refusal, judged by the schema."""

import json
import re
from functools import partial

import pytest

import official
from dovetail.transports import wire_refusals
from dovetail.transports.options import KINDS
from dovetail.transports.wire_refusals import Refusal


def every_refusal() -> dict[str, Refusal]:
    """The constants, and what becomes of a limit."""
    found = vars(wire_refusals)
    constants = {name: each for name, each in found.items() if isinstance(each, Refusal)}
    makers = {name: each for name, each in found.items() if isinstance(each, partial)}
    return {**constants, **{name: make(7) for name, make in makers.items()}}


REFUSALS = every_refusal()


@pytest.mark.parametrize("name", REFUSALS)
def test_every_refusal_is_a_valid_error(name: str) -> None:
    official.demand()
    head, _, body = REFUSALS[name].response([(b"date", b"today")]).partition(b"\r\n\r\n")
    status, *headers = head.decode("ascii").split("\r\n")
    assert re.fullmatch(r"HTTP/1\.1 [45]\d\d [A-Z][A-Za-z -]+", status)
    assert {"date: today", "content-type: application/json", f"content-length: {len(body)}"} <= set(headers)
    assert set(json.loads(body)) == {"jsonrpc", "error"}
    official.validator_for("2025-11-25", "JSONRPCErrorResponse").validate(json.loads(body))


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("too_large", "max_header_bytes"),
        ("too_much_framing", "max_header_bytes"),
        ("too_many", "max_headers"),
        ("too_slow", "header_timeout"),
        ("crowded", "max_connections"),
    ],
)
def test_a_limit_is_named(name: str, option: str) -> None:
    assert option in KINDS
    message = REFUSALS[name].message
    assert message.endswith(f"; {option} (DOVETAIL_{option.upper()}) sets the limit")
    assert re.search(r"\b7\b", message)
