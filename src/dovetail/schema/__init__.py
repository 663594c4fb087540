"""Python types as JSON Schema: what a caller may send, decoded, checked and explained.

`coerce` is loaded with the first value that does not fit.
"""

from typing import TYPE_CHECKING

from dovetail._lazy import lazy_modules

if TYPE_CHECKING:
    from dovetail.schema import coerce as coerce

__getattr__ = lazy_modules(__name__, "coerce")
