"""A server of an `mcp.json`: the file and a name come in; how to reach it goes out.

Of what the file says, names alone get into a message: all else may be secret.
"""

import difflib
import shlex
from collections.abc import Iterable

from dovetail.cli.exits import WRONG_USE, Ending
from dovetail.cli.terminal import in_line
from dovetail.client.config import ListedServer, all_servers
from dovetail.client.transports.stdio import NotStarted
from dovetail.client.transports.url import ServerUrl
from dovetail.errors import SetupError

MAX_NAMED = 20


def listed_server(path: str, name: str) -> ListedServer:
    """The name may be left out where there is one server."""
    try:
        known = all_servers(path)
    except SetupError as failure:
        raise Ending(str(failure), WRONG_USE) from None
    servers = {each: listed for each, listed in known.items() if not listed.is_off}
    if not name and not servers:
        raise Ending(f"{path} names no servers, or none that is switched on", WRONG_USE)
    if not name and len(servers) == 1:
        name = next(iter(servers))
    if name in known and name not in servers:
        raise Ending(f"{path}:{name} is switched off: the file says that it is disabled", WRONG_USE)
    if name not in servers:
        raise Ending(_which(path, name, servers), WRONG_USE)
    if servers[name].problem:
        raise Ending(servers[name].problem, WRONG_USE)
    return servers[name]


def _which(path: str, name: str, known: Iterable[str]) -> str:
    words = [f"{path}:{each}" for each in known]
    if name and (near := difflib.get_close_matches(f"{path}:{name}", words, n=1, cutoff=0.8)):
        return f"{path} has no server {name}; did you mean {_typed(near[0])}?"
    head = f"{path} has no server {name}" if name else f"{path} has several servers"
    more = ["  …"] if len(words) > MAX_NAMED else []
    return "\n".join([f"{head}; say which:", *(f"  {_typed(word)}" for word in words[:MAX_NAMED]), *more])


def _typed(word: str) -> str:
    """As it has to be typed."""
    return in_line(shlex.quote(word), 200)


def without_values(failure: Exception, target: str | list[str], shown: str) -> str:
    """What is told of a URL or a command, as something of `shown`."""
    if isinstance(failure, NotStarted):
        return f"the command of {shown} can't be started: {failure.why}"
    told = ServerUrl.of(target).shown if isinstance(target, str) else repr(target[0])
    return str(failure).replace(told, shown)
