"""What an examination says: one line, how bad it is, and what to do about it."""

from typing import NamedTuple

OK, WARNING, PROBLEM = "ok", "warning", "problem"


class HealthNote(NamedTuple):
    level: str  # OK, WARNING or PROBLEM
    subject: str
    text: str
    fix: str = ""
