"""JSON Schemas of Python types: generated, checked, explained; and decoders for the values.

`coerce` is loaded with the first value that does not fit, `pydantic` with the first type of pydantic.
"""

from typing import TYPE_CHECKING

from dovetail._lazy import lazy_modules

if TYPE_CHECKING:
    from dovetail.schema import coerce as coerce
    from dovetail.schema import pydantic as pydantic

__getattr__ = lazy_modules(__name__, "coerce", "pydantic")
