"""Extensions of the protocol: an API for your own, and three official ones. A server without them loads none."""

from typing import TYPE_CHECKING

from dovetail._lazy import lazy_modules

if TYPE_CHECKING:
    from dovetail.extensions import apps as apps
    from dovetail.extensions import extension as extension
    from dovetail.extensions import frontmatter as frontmatter
    from dovetail.extensions import skills as skills
    from dovetail.extensions import tasks as tasks

__getattr__ = lazy_modules(__name__, "apps", "extension", "frontmatter", "skills", "tasks")
