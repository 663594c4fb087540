"""JSON Schemas of Python types: generated, checked, explained; and decoders for the values.

`coerce` is loaded with the first value that does not fit.
"""

from typing import TYPE_CHECKING

from dovetail._lazy import lazy_modules

if TYPE_CHECKING:
    from dovetail.schema import coerce as coerce

__getattr__ = lazy_modules(__name__, "coerce")
