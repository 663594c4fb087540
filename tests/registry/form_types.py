"""Types that forms are made of, and one party in four spellings."""

import dataclasses
import datetime
import enum
from typing import Annotated, Any, Literal, TypeVar

import attrs
import msgspec
import pydantic

from dovetail import Field
from dovetail.protocol.elicitation import render_form
from dovetail.protocol.revisions import BY_NAME
from dovetail.registry.elicitation_form import Form
from form_judge import REVISIONS, assert_official

T = TypeVar("T")


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mixed(enum.Enum):
    AUTO = "auto"
    HALF = 0.5


class Sauce(enum.StrEnum):
    HOT = "hot"
    MILD = "mild"


def alone(form: Form) -> dict[str, Any]:
    """The schema of the one property of a form."""
    assert list(form.schema["properties"]) == ["value"]
    return form.schema["properties"]["value"]


def official_in_every_revision(form: Form) -> None:
    for name in REVISIONS:
        assert_official({"message": "?", "requestedSchema": render_form(form.schema, BY_NAME[name])}, name)


def text(**keywords: Any) -> dict[str, Any]:
    return {"type": "string", **keywords}


def many(*choices: str) -> dict[str, Any]:
    return {"type": "array", "items": text(enum=list(choices))}


LEVELS = [{"const": "1", "title": "LOW"}, {"const": "2", "title": "HIGH"}]


def titled(**titles: str) -> list[dict[str, str]]:
    return [{"const": choice, "title": title} for choice, title in titles.items()]


NOON = datetime.datetime(2026, 7, 28, 12, tzinfo=datetime.UTC)


@dataclasses.dataclass
class AsDataclass:
    name: Annotated[str, Field(title="Name", min_length=1)]
    day: datetime.date
    level: Level
    sizes: list[Size]
    note: str | None = None
    guests: Annotated[int, "How many"] = 2
    sauce: Sauce = Sauce.MILD
    extras: set[Literal["x", "y"]] = dataclasses.field(default_factory=set)


class AsStruct(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, Field(title="Name", min_length=1)]
    day: datetime.date
    level: Level
    sizes: list[Size]
    note: str | None = None
    guests: Annotated[int, "How many"] = 2
    sauce: Sauce = Sauce.MILD
    extras: set[Literal["x", "y"]] = msgspec.field(default_factory=set)


@attrs.define
class AsAttrs:
    name: Annotated[str, Field(title="Name", min_length=1)]
    day: datetime.date
    level: Level
    sizes: list[Size]
    note: str | None = None
    guests: Annotated[int, "How many"] = 2
    sauce: Sauce = Sauce.MILD
    extras: set[Literal["x", "y"]] = attrs.field(factory=set)


class AsModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    name: str = pydantic.Field(title="Name", min_length=1)
    day: datetime.date
    level: Level
    sizes: list[Size]
    note: str | None = None
    guests: int = pydantic.Field(2, description="How many")
    sauce: Sauce = Sauce.MILD
    extras: set[Literal["x", "y"]] = pydantic.Field(default_factory=set)


PARTY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Name", "minLength": 1},
        "day": {"type": "string", "format": "date"},
        "level": {"type": "string", "oneOf": LEVELS},
        "sizes": {"type": "array", "items": {"type": "string", "enum": ["s", "l"]}},
        "note": {"type": "string"},
        "guests": {"type": "integer", "description": "How many", "default": 2},
        "sauce": {"type": "string", "enum": ["hot", "mild"], "default": "mild"},
        "extras": {"type": "array", "items": {"type": "string", "enum": ["x", "y"]}},
    },
    "required": ["name", "day", "level", "sizes"],
}
FILLED_IN = {"name": "Ada", "day": "2026-07-28", "level": "2", "sizes": ["l"], "guests": 3.0, "own": {"deep": []}}


@dataclasses.dataclass
class Range:
    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low must not be above high")
