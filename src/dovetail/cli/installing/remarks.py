"""An entry comes in; sentences go out, for whoever is to say yes to it."""

import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.cli.installing.hosts import OWN_KEYS, Host, expanded_in
from dovetail.cli.installing.servers import COMMAND, PROGRAM, Given
from dovetail.cli.installing.veil import veiled
from dovetail.cli.terminal import in_line


def on_entry(host: Host, given: Given, entry: Mapping[str, Any], *, is_shared: bool) -> Iterator[str]:
    """`is_shared` if it stands in a file for all who work in this folder."""
    if given.kind == COMMAND and not shutil.which(entry["command"]):
        yield f"There is no program {in_line(entry['command'])} here; {host.title} may not find it."
    own = ("type", "command", "args") if given.kind == PROGRAM else ("type", "command")  # we have written these
    if places := expanded_in(host, {key: value for key, value in entry.items() if key not in own}):
        yield f"{host.title} reads $… as a variable of its own environment, in: {', '.join(places)}"
    if is_shared:
        yield from _on_sharing(given, entry)


def _on_sharing(given: Given, entry: Mapping[str, Any]) -> Iterator[str]:
    if veiled(entry) != entry:
        yield "Whoever gets this folder gets the hidden values too, which may be secrets."
    place = next(filter(os.path.isabs, [entry.get("command", ""), *entry.get("args", ())]), None)
    if place is not None:
        better = "; --uv starts it wherever this folder is" if given.kind == PROGRAM and not given.with_uv else ""
        yield f"Others who get this folder have no {in_line(place)}{better}."


def on_replacing(old: Any, new: Mapping[str, Any]) -> Iterator[str]:
    """What stays of the entry that was there, and what does not."""
    was = old if isinstance(old, Mapping) else {}
    if kept := [key for key in was if key not in OWN_KEYS]:
        yield f"Kept of what was there: {in_line(', '.join(kept))}"
    lost = [f"{key} {name}" for key in ("env", "headers") for name in _names(was, key) if name not in _names(new, key)]
    if lost:
        yield f"Not kept, give it again if it is needed: {in_line(', '.join(lost))}"
    if hidden := _hidden_changes(was, new):
        yield f"Hidden values change in: {', '.join(hidden)}"


def _names(entry: Mapping[str, Any], key: str) -> list[str]:
    value = entry.get(key)
    return list(value) if isinstance(value, Mapping) else []


def _hidden_changes(was: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The keys whose values look the same, but are not."""
    seen, shown = veiled(was), veiled(new)
    return [key for key in new if key in was and was[key] != new[key] and seen[key] == shown[key]]
