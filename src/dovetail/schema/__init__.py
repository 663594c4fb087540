"""JSON Schemas of Python types: generated, checked, explained; and decoders for the values.

`coerce` is loaded with the first value that does not fit, `portable` with the first list of a server whose schemas are
portable, `pydantic` with the first type of pydantic.
"""

from typing import TYPE_CHECKING

from dovetail._lazy import lazy_modules

if TYPE_CHECKING:
    from dovetail.schema import coerce as coerce
    from dovetail.schema import portable as portable
    from dovetail.schema import pydantic as pydantic

__getattr__ = lazy_modules(__name__, "coerce", "portable", "pydantic")
