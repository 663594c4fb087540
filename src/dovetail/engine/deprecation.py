"""Says once per process that a feature is on its way out of MCP."""

import warnings

from dovetail.protocol.features import DEPRECATED

_said: set[str] = set()


def warn_deprecated(feature: str) -> None:
    if feature not in _said:
        _said.add(feature)
        warnings.warn(DEPRECATED[feature], DeprecationWarning, stacklevel=4)
