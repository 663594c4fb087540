"""Names for parametrised tests that are the same in every process, so that several may share the work."""

import re


def stable(value: object) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))
