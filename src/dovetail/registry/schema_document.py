"""A JSON Schema comes in; a private copy goes out that knows its parts and references, or a refusal.

Nothing is fetched, and what would take the engine too long to evaluate is refused here.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from dovetail.errors import SetupError
from dovetail.registry.soundness import excerpt, oddities, readable

DIALECTS = (
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-04/schema",
)


class SchemaLimits(msgspec.Struct, frozen=True):
    """How much a schema may ask for, and how deep a value may be."""

    depth: int = 64
    subschemas: int = 10_000
    paths: int = 100_000  # ways through the schema, references followed
    instance_depth: int = 200
    bytes: int = 1_000_000


_HOME = "https://schema.invalid/"  # the address of a schema that does not give its own; nothing is ever fetched
_IN_PLACE = frozenset(
    {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"}
)  # fmt: skip
_INSIDE = frozenset({
    "properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames",
    "items", "prefixItems", "additionalItems", "unevaluatedItems", "contains",
})  # fmt: skip
_KEPT = frozenset({"$defs", "definitions", "contentSchema"})
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"})
_LEFT_OVER = frozenset({"unevaluatedProperties", "unevaluatedItems"})
_DYNAMIC = 50  # anchors that any dynamic reference may mean
_LEAVE = 0
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def _parts(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The keyword and the subschema of each part."""
    for keyword, held in schema.items():
        if keyword not in _IN_PLACE and keyword not in _INSIDE and keyword not in _KEPT:
            continue
        if keyword in _NAMED and isinstance(held, dict):
            yield from ((keyword, part) for part in held.values())
        elif isinstance(held, list):
            yield from ((keyword, part) for part in held)
        else:
            yield keyword, held


class SchemaDocument:
    """A private copy of a schema, measured; knows where each part of it is and what each reference means."""

    def __init__(self, schema: Mapping[str, Any] | bool, where: str, limits: SchemaLimits) -> None:
        self.where = where
        self.limits = limits
        self.root = self._copy(schema)
        self.dialect = DIALECTS[0]
        self.patterns: dict[str, None] = {}
        self.parts: list[dict[str, Any]] = []
        self._bases: dict[int, str] = {}  # the URIs that references count from
        self._named: dict[str, Any] = {_HOME: self.root}
        self._dynamic: list[dict[str, Any]] = []
        self._targets: dict[int, list[Any]] = {}
        self.is_old = False
        self.deepest = limits.instance_depth
        if isinstance(self.root, dict):
            self.dialect = self._known_dialect(self.root) or DIALECTS[0]
            self.is_old = self.dialect in DIALECTS[2:]  # there a "$ref" hides what stands beside it
            self._place(self.root, _HOME)
            for part in self.parts:  # grows when a reference leads to a place where no schema is expected
                self._targets[id(part)] = [target for name in _REFERENCES for target in self._targets_of(part, name)]
            ways = self._ways_back()
            self._count_paths()
            used = self.reach(self.root, inside=True) if any(ways.values()) else []
            most = max((ways[id(part)] for part in used if _LEFT_OVER & part.keys()), default=0)
            if most > 1:  # the engine may take each of them at every level of a value
                self.deepest = min(self.deepest, int(math.log(limits.paths, most)))

    def _refuse(self, reason: str) -> SetupError:
        return SetupError(f"{self.where}: {reason}")

    def _copy(self, schema: Mapping[str, Any] | bool) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise self._refuse(f"a JSON Schema is a dict or a bool, not {type(schema).__name__}")
        plain = dict(schema)
        odd = oddities(plain, 2 * self.limits.depth + 16, largest=self.limits.bytes)
        if odd:
            raise self._refuse(f"the schema can't be used: {readable(odd[0].path, 'it')} {odd[0].text}")
        encoded = msgspec.json.encode(plain)
        if len(encoded) > self.limits.bytes:
            raise self._refuse(f"the schema is too large, at most {self.limits.bytes:,} bytes are allowed")
        return msgspec.json.decode(encoded)

    def _known_dialect(self, part: dict[str, Any]) -> str | None:
        uri = part.get("$schema")
        if not isinstance(uri, str):
            return None
        name = uri.removesuffix("#").partition("://")[2]
        found = next((dialect for dialect in DIALECTS if dialect.endswith("://" + name)), None)
        if found is None:
            supported = ", ".join(DIALECTS)
            raise self._refuse(f'"$schema" {excerpt(uri)} is not a supported dialect; use one of {supported}')
        return found

    def _place(self, part: Any, base: str) -> None:
        """Finds every schema inside one, and what it is called."""
        stack = [(part, base, 1)]
        count = len(self.parts)
        while stack:
            part, base, depth = stack.pop()
            count += 1
            if count > self.limits.subschemas:
                raise self._refuse(f"more than {self.limits.subschemas:,} subschemas; split the schema or simplify it")
            if depth > self.limits.depth:
                raise self._refuse(f"the schema is nested deeper than {self.limits.depth} levels; flatten it")
            if not isinstance(part, dict) or id(part) in self._bases:
                continue
            self._bases[id(part)] = base = self._name(part, base)
            self.parts.append(part)
            stack += [(inner, base, depth + 1) for _, inner in _parts(part)]

    def _name(self, part: dict[str, Any], base: str) -> str:
        self._known_dialect(part)
        pattern, names = part.get("pattern"), part.get("patternProperties")
        self.patterns |= dict.fromkeys([pattern] if isinstance(pattern, str) else [])
        self.patterns |= dict.fromkeys(names if isinstance(names, dict) else [])
        own = part.get("id" if self.dialect == DIALECTS[-1] else "$id")
        if isinstance(own, str) and not (self.is_old and "$ref" in part):
            address, _, fragment = self._join(base, own).partition("#")
            self._named[f"{address}#{fragment}" if fragment else address] = part
            base = base if fragment else address
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(part.get(keyword), str):
                self._named[f"{base}#{part[keyword]}"] = part
        if "$dynamicAnchor" in part or "$recursiveAnchor" in part:
            self._dynamic.append(part)
            if len(self._dynamic) > _DYNAMIC:
                raise self._refuse(f"more than {_DYNAMIC} dynamic anchors; use fewer")
        return base

    def _join(self, base: str, reference: str) -> str:
        if reference.startswith("#"):
            return base + reference
        from urllib.parse import urljoin  # late, as below: few schemas need it

        try:
            return urljoin(base, reference)
        except ValueError:
            raise self._refuse(f"{excerpt(reference)} is not a URI reference") from None

    def target(self, part: dict[str, Any], reference: str) -> Any:
        """What a reference in a part means; None if that is not in this document."""
        base, _, fragment = self._join(self._bases[id(part)], reference).partition("#")
        if "%" in fragment:
            from urllib.parse import unquote

            fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            return self._named.get(f"{base}#{fragment}")
        found = self._named.get(base)
        for step in fragment.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list):
                found = {str(index): item for index, item in enumerate(found)}
            found = found.get(step) if isinstance(found, dict) else None
        if isinstance(found, dict) and id(found) not in self._bases:
            self._place(found, base)
        return found

    def _targets_of(self, part: dict[str, Any], keyword: str) -> list[Any]:
        reference = part.get(keyword)
        if not isinstance(reference, str):
            return []
        found = self.target(part, reference)
        if keyword != "$ref":  # what it means depends on the way that led here: any of these
            name = reference.partition("#")[2]
            return [found, *(other for other in self._dynamic if other.get("$dynamicAnchor", name) == name)]
        if found is not None or self._join(_HOME, reference).startswith(self.dialect.removesuffix("/schema")):
            return [found]  # the metaschema of the dialect is built in
        if reference.startswith("#"):
            raise self._refuse(f'"$ref" {excerpt(reference)} leads nowhere; define what it means under "$defs"')
        raise self._refuse(
            f'"$ref" {excerpt(reference)} leads out of the schema and is never fetched; copy what it means '
            'into "$defs" and write "#/$defs/<name>"'
        )

    def reach(self, part: dict[str, Any], *, inside: bool) -> list[dict[str, Any]]:
        """A part and all that it applies to the same value; with `inside`, also those for the values in it."""
        found, stack = {id(part): part}, [part]
        while stack:
            for in_place, inner in self._nested(stack.pop()):
                if (inside or in_place) and isinstance(inner, dict) and id(inner) not in found:
                    found[id(inner)] = inner
                    stack.append(inner)
        return list(found.values())

    def _nested(self, part: dict[str, Any]) -> list[tuple[bool, Any]]:
        """What a part applies, and whether to the same value."""
        inner = [(keyword in _IN_PLACE, inner) for keyword, inner in _parts(part) if keyword not in _KEPT]
        return inner + [(True, target) for target in self._targets[id(part)]]

    def components(self) -> dict[int, int]:
        """By its id, what each part shares with all those that it leads to and that lead back to it."""
        found: dict[int, int] = {}
        users: dict[int, list[Any]] = {id(part): [] for part in self.parts}
        left: dict[int, Any] = {}  # in the order in which a walk is done with them
        stack = [(part, False) for part in self.parts]
        while stack:
            part, is_done = stack.pop()
            if is_done:
                left[id(part)] = left.pop(id(part))
            elif id(part) not in left:
                left[id(part)] = part
                inner = [each for _, each in self._nested(part) if isinstance(each, dict)]
                stack += [(part, True), *((each, False) for each in inner)]
                for each in inner:
                    users[id(each)].append(part)
        for first in reversed(left):
            rest = [left[first]]
            while rest:
                if id(part := rest.pop()) not in found:
                    found[id(part)] = first
                    rest += users[id(part)]
        return found

    def _ways_back(self) -> dict[int, int]:
        """By its id, how often a part, looking at one value, comes to look at the values in it with what leads back.

        A part that is applied to the same value again without end means nothing, and can bring the engine down.
        """
        component = self.components() if any(_LEFT_OVER & part.keys() for part in self.parts) else {}
        trail: set[int] = set()
        ways: dict[int, int] = {}
        stack = [(part, False) for part in self.parts]
        while stack:
            part, is_done = stack.pop()
            if is_done:
                trail.discard(id(part))
                own = component.get(id(part), 0)
                same = [(here, id(each)) for here, each in self._nested(part) if component.get(id(each)) == own]
                ways[id(part)] = sum(ways[each] for here, each in same if here) + any(not here for here, _ in same)
            elif id(part) in trail:
                raise self._refuse('a "$ref" comes back to itself without going deeper into the value; break the loop')
            elif id(part) not in ways:
                trail.add(id(part))
                stack.append((part, True))
                stack += [(inner, False) for here, inner in self._nested(part) if here and isinstance(inner, dict)]
        return ways

    def _count_paths(self) -> None:
        """Refuses a schema with too many ways through it; a way ends where it comes back to a part it went through."""
        count = 0
        trail: set[int] = set()
        nested = {id(part): self._nested(part) for part in self.parts}
        stack = [(self.root, 1)]
        while stack:
            part, weight = stack.pop()
            if weight == _LEAVE:
                trail.discard(id(part))
                continue
            count += weight
            if count > self.limits.paths:
                raise self._refuse(
                    f"evaluating the schema may take more than {self.limits.paths:,} steps, as its references or "
                    "alternatives multiply; simplify them"
                )
            if isinstance(part, dict) and id(part) not in trail:
                trail.add(id(part))
                stack.append((part, _LEAVE))
                # To know what is left over, the engine evaluates what stands beside "unevaluated…" again and again.
                more = 4 if _LEFT_OVER & part.keys() else 1
                stack += [(inner, weight * more if in_place else weight) for in_place, inner in nested[id(part)]]
