"""Where records live that outlast a request: keys, counters, event logs and wake-ups; bytes in, bytes out.

They come late: a server on stdio keeps no records.
"""

from typing import TYPE_CHECKING

from dovetail.late import late

if TYPE_CHECKING:
    from dovetail.state import base as base
    from dovetail.state import memory as memory

__getattr__ = late(__name__, "base", "memory")
