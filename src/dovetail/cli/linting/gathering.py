"""A connected client comes in; all that its server lists goes out, as it came."""

from typing import TYPE_CHECKING

from dovetail.cli.linting.linter import Catalogue
from dovetail.cli.list import KINDS, definitions
from dovetail.protocol.revisions import BY_NAME

if TYPE_CHECKING:
    from dovetail.client import Client


async def catalogue_of(client: "Client") -> Catalogue:
    found = {kind: await definitions(client, listed) for kind, listed in KINDS.items()}
    return Catalogue(
        **{kind: each.definitions for kind, each in found.items()},
        malformed=[(kind, words) for kind, each in found.items() for words in each.malformed],
        server=client.server_info.name if client.server_info else "",
        objects_only=not BY_NAME[client.protocol_version].any_structured_output,
    )
