"""Extensions of the protocol: their ids and settings, as servers and clients declare them."""

import re
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from dovetail.errors import SetupError
from dovetail.protocol.methods import EVERY

EXTENSIONS_KEY = "extensions"  # of the capabilities of a server, and of a client
UI = "io.modelcontextprotocol/ui"  # MCP Apps
UI_MIME_TYPE = "text/html;profile=mcp-app"  # of views; hosts compare it as it is
UI_LINK_KEY = "ui/resourceUri"  # of a tool's `_meta`: its view, in the older of two spellings
_LABEL = r"[A-Za-z]([A-Za-z0-9-]*[A-Za-z0-9])?"
_ID = re.compile(rf"{_LABEL}(\.{_LABEL})*/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


class DeclaredExtension(msgspec.Struct, frozen=True):
    """An extension as a server declares it."""

    settings: Mapping[str, Any] = {}
    versions: Collection[str] = EVERY  # the revisions in which it is declared


def declared_extensions(capabilities: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """The extensions in a client's or server's capabilities; what is no settings object declares nothing."""
    found = capabilities.get(EXTENSIONS_KEY)
    if not isinstance(found, Mapping):
        return {}
    return {id: settings for id, settings in found.items() if isinstance(settings, Mapping)}


def checked_extension(id: object, settings: object, where: str) -> dict[str, Any]:
    """The settings of an extension, as JSON. Raises SetupError for a bad id or bad settings."""
    if not isinstance(id, str) or len(id) > 200 or not _ID.fullmatch(id):
        fix = 'an id is a domain of yours, reversed, a slash and a name: "com.example/search"'
        raise SetupError(f"{where}: {id!r} is no id of an extension; {fix}")
    try:
        plain = msgspec.json.decode(msgspec.json.encode(settings))
    except (TypeError, ValueError, RecursionError):
        plain = None
    if not isinstance(plain, dict):
        raise SetupError(f"{where}: the settings of {id} must be a JSON object, such as {{}}, not {settings!r:.100}")
    return plain
