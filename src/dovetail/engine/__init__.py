"""The one place that awaits user code. Questions to clients and watching files come late, when there are any."""

from typing import TYPE_CHECKING

from dovetail.late import late

if TYPE_CHECKING:
    from dovetail.engine import live as live
    from dovetail.engine import progress as progress
    from dovetail.engine import replay as replay
    from dovetail.engine import replies as replies
    from dovetail.engine import seal as seal
    from dovetail.engine import steps as steps
    from dovetail.engine import watch as watch

__getattr__ = late(__name__, "live", "progress", "replay", "replies", "seal", "steps", "watch")
