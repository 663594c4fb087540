"""The one place that awaits user code. Questions to clients, rates and watching files come late, when there are any."""

from typing import TYPE_CHECKING

from dovetail.late import late

if TYPE_CHECKING:
    from dovetail.engine import access as access
    from dovetail.engine import audit as audit
    from dovetail.engine import leases as leases
    from dovetail.engine import live as live
    from dovetail.engine import progress as progress
    from dovetail.engine import rate_limits as rate_limits
    from dovetail.engine import refresh as refresh
    from dovetail.engine import replay as replay
    from dovetail.engine import replies as replies
    from dovetail.engine import seal as seal
    from dovetail.engine import secrets as secrets
    from dovetail.engine import steps as steps
    from dovetail.engine import watch as watch

__getattr__ = late(
    __name__,
    "access",
    "audit",
    "leases",
    "live",
    "progress",
    "rate_limits",
    "refresh",
    "replay",
    "replies",
    "seal",
    "secrets",
    "steps",
    "watch",
)
