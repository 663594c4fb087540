"""Registrations, compiled: tools, and when they are first used resources, prompts and server requests."""

from typing import TYPE_CHECKING

from dovetail._lazy import lazy_modules

if TYPE_CHECKING:
    from dovetail.registry import dependencies as dependencies
    from dovetail.registry import elicitation as elicitation
    from dovetail.registry import files as files
    from dovetail.registry import mounts as mounts
    from dovetail.registry import official as official
    from dovetail.registry import prompts as prompts
    from dovetail.registry import resources as resources
    from dovetail.registry import roots as roots
    from dovetail.registry import sampling as sampling
    from dovetail.registry import transforms as transforms
    from dovetail.registry import visibility as visibility

__getattr__ = lazy_modules(
    __name__, "dependencies", "elicitation", "files", "mounts", "official", "prompts", "resources", "roots",
    "sampling", "transforms", "visibility",
)  # fmt: skip
