"""Engine that runs authors' functions for requests. Modules that few servers need are loaded late."""

from typing import TYPE_CHECKING

from dovetail._lazy import lazy_modules

if TYPE_CHECKING:
    from dovetail.engine import access as access
    from dovetail.engine import audit as audit
    from dovetail.engine import caller_state as caller_state
    from dovetail.engine import dependencies as dependencies
    from dovetail.engine import file_watcher as file_watcher
    from dovetail.engine import handles as handles
    from dovetail.engine import hooks as hooks
    from dovetail.engine import idempotency as idempotency
    from dovetail.engine import input_required as input_required
    from dovetail.engine import metrics as metrics
    from dovetail.engine import mounts as mounts
    from dovetail.engine import open_calls as open_calls
    from dovetail.engine import progress as progress
    from dovetail.engine import rate_limits as rate_limits
    from dovetail.engine import request_log as request_log
    from dovetail.engine import request_state as request_state
    from dovetail.engine import result_cache as result_cache
    from dovetail.engine import server_requests as server_requests
    from dovetail.engine import telemetry as telemetry
    from dovetail.engine import tool_search as tool_search
    from dovetail.engine import watchdog as watchdog

__getattr__ = lazy_modules(
    __name__, "access", "audit", "caller_state", "dependencies", "file_watcher", "handles", "hooks",
    "idempotency", "input_required", "metrics", "mounts", "open_calls", "progress", "rate_limits", "request_log",
    "request_state", "result_cache", "server_requests", "telemetry", "tool_search", "watchdog",
)  # fmt: skip
