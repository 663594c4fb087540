"""Mounted items: the names and URIs that the items of a child have at its parent, and which of them come along."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from dovetail import registry
from dovetail.errors import SetupError
from dovetail.protocol.extensions import UI_LINK_KEY
from dovetail.protocol.types import MAX_URI_LENGTH, EmbeddedResource, ResourceContents, ResourceLink
from dovetail.protocol.uri_template import UriTemplate
from dovetail.registry import registration
from dovetail.registry.catalog import check_name
from dovetail.registry.prompts import Prompt
from dovetail.registry.resources import Resource, Template
from dovetail.registry.tools import Tool

I = TypeVar("I", Tool, Prompt, Resource, Template)  # noqa: E741
Rename = Callable[[str], str]  # makes the child's URIs those of the parent

NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")
MAX_META_DEPTH = 32  # levels of a `_meta` in which URIs are found
_SCHEME = re.compile(r"(?!https?://)[A-Za-z][A-Za-z0-9+.-]*://", re.IGNORECASE)  # of URIs that are renamed


class Mounted(msgspec.Struct, frozen=True, eq=False):
    """Where the calls of a mounted item go."""

    mount: Any  # a `Mount` of engine/mounts.py
    own: str  # its name or URI at the child


def checked_namespace(namespace: object, where: str) -> str:
    """The namespace, "" for none. Raises SetupError for one that can't be a part of names and URIs."""
    if namespace is None:
        return ""
    if not isinstance(namespace, str) or not NAMESPACE.match(namespace):
        fix = "use 1 to 64 of A-Z a-z 0-9 _ - . that begin with a letter or digit, or leave it out"
        raise SetupError(f"{where}: namespace={namespace!r} is not possible; {fix}")
    return namespace


# ── URIs ──


def rename_uri(uri: str, namespace: str) -> str:
    """A URI or template of a child as it is at the parent: `notes://x` is `notes://calendar/x`; http(s) stays."""
    found = _SCHEME.match(uri) if namespace else None
    return uri if found is None else f"{found[0]}{namespace.lower()}/{uri[found.end() :]}"


def own_uri(uri: str, namespace: str) -> str | None:
    """The URI that `rename_uri` made this one of; None if it made it of none."""
    found = _SCHEME.match(uri) if namespace else None
    if found is None:
        return uri
    first, slash, rest = uri[found.end() :].partition("/")
    return found[0] + rest if slash and first.lower() == namespace.lower() else None


def rename_meta(meta: Any, rename: Rename, depth: int = MAX_META_DEPTH) -> Any:
    """A `_meta` with the child's URIs renamed, such as `ui.resourceUri`."""
    if isinstance(meta, str):
        return rename(meta) if "://" in meta else meta
    if isinstance(meta, Mapping) and depth:
        return {key: rename_meta(value, rename, depth - 1) for key, value in meta.items()}
    if isinstance(meta, list | tuple) and depth:
        return [rename_meta(value, rename, depth - 1) for value in meta]
    return meta


def rename_content(block: Any, rename: Rename) -> Any:
    """A block of content, or the contents of a resource, with the child's URIs renamed."""
    changes: dict[str, Any] = {}
    if isinstance(block, ResourceLink | ResourceContents):
        changes["uri"] = rename(block.uri)
    elif isinstance(block, EmbeddedResource):
        changes["resource"] = rename_content(block.resource, rename)
    if (meta := getattr(block, "meta", None)) is not None:
        changes["meta"] = rename_meta(meta, rename)
    return replace(block, **changes) if changes else block


# ── items ──


def copy_item(mount: Any, item: I) -> I:
    """The item of the parent: with another name, and a route back to the child. Raises SetupError if it can't be.

    `mount` is a `Mount` of engine/mounts.py.
    """
    namespace = mount.namespace
    if namespace and item.definition.meta:
        meta = rename_meta(item.definition.meta, mount.parent_uri)
        if UI_LINK_KEY in meta and mount.child is not None:  # also a view that is yet to be added
            meta[UI_LINK_KEY] = link = mount.parent_uri(item.definition.meta[UI_LINK_KEY], is_own=True)
            meta["ui"] = {**meta.get("ui", {}), "resourceUri": link}
        item = replace(item, definition=replace(item.definition, meta=meta))
    if isinstance(item, Tool):
        return _copy_tool(mount, item)
    if isinstance(item, Prompt):
        definition = replace(item.definition, name=mount.prefix + item.name)
        return replace(item, definition=definition, mounted=Mounted(mount, item.name))
    uri, mounted = rename_uri(item.uri, namespace), Mounted(mount, item.uri)
    if len(uri) > MAX_URI_LENGTH:
        raise SetupError(f"{mount.where}: the URI of {item.definition.name!r} is too long with the namespace")
    if isinstance(item, Template):  # files are found, listed and watched by the child
        template, definition_ = UriTemplate(uri, item.template.wholes), replace(item.definition, uri_template=uri)
        unused: dict[str, Any] = {"directory": None, "guarded": {}, "cache": None}
        return replace(item, definition=definition_, mounted=mounted, template=template, **unused)
    folder = None if item.folder is None else rename_uri(item.folder, namespace)
    unused = {"path": None, "describe": None, "cache": None}
    return replace(item, definition=replace(item.definition, uri=uri), mounted=mounted, folder=folder, **unused)


def _copy_tool(mount: Any, tool: Tool) -> Tool:
    own, where = tool.name, f"{mount.where}, tool {tool.name}"
    if mount.child is not None:  # else it runs at the parent: the child is only a registry
        tool = replace(tool, route=Mounted(mount, own), rewriter=None)
    if own in mount.transforms:
        return registry.transforms.transform_tool(tool, mount.transforms[own], where, mount.prefix)
    name = check_name(mount.prefix + own, where)
    return replace(tool, definition=replace(tool.definition, name=name), label=f"tool {name}")


def checked_transforms(transforms: Any, names: Sequence[str] | None, where: str) -> Mapping[str, Any]:
    """Raises SetupError for a transform that fits no tool of these names; None if they are not known yet."""
    if not isinstance(transforms or {}, Mapping):
        raise SetupError(f"{where}: transforms={transforms!r} is not possible; it must be a dict by names of tools")
    for own in (each for each in transforms or () if names is not None and each not in names):
        hint = registration.did_you_mean(own, names or ())
        raise SetupError(f"{where}: transforms= names {own!r}, and there is no such tool{hint}")
    return transforms or {}
