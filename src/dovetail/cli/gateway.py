"""Gateways of `dovetail run`: the servers of an mcp.json behind one endpoint, and a URL as a server on stdio.

stdout belongs to the protocol: what a user has to see goes to stderr.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dovetail
import dovetail.auth
import dovetail.client
from dovetail import cli
from dovetail.cli import output as terminal
from dovetail.cli.target import BadTarget, split_config_target
from dovetail.client.config import ListedServer, read_servers
from dovetail.client.transports.base import ServerUrl
from dovetail.errors import SetupError
from dovetail.transports.http.origin import is_loopback

KEYS_VARIABLE, TOKEN_VARIABLE = "DOVETAIL_API_KEYS", "DOVETAIL_CLIENT_TOKEN"


def load_gateway(target: str, name: str | None, http: Any) -> dovetail.Server:
    """The server for a URL, `mcp.json` or `mcp.json:name`. `http`: the options of `Server.run`; None for stdio."""
    found = split_config_target(target)
    if "://" not in target and found is not None:
        return _gateway(*found, name, http)
    if http is not None:
        raise BadTarget("a URL is served over stdio, with your sign-in; to serve it over HTTP, name it in an mcp.json")
    try:
        host = ServerUrl.parse(target).origin[1]
    except SetupError as failure:
        raise BadTarget(str(failure).removeprefix("Client: ")) from None
    return dovetail.Proxy(target, name=name or host, auth=os.environ.get(TOKEN_VARIABLE) or _sign_in())


def _sign_in() -> Any:
    """Sign-ins by the browser; all bridges and commands of a user share one file of tokens."""
    return dovetail.client.OAuth(client_name="Dovetail", tokens=dovetail.client.TokenFile())


def _gateway(path: str, only: str, name: str | None, http: Any) -> dovetail.Server:
    """A server with the servers of a file, each under its name; or with one of them alone, under its own names."""
    servers = {only: cli.connect.configured_server(path, only)} if only else _usable_servers(path)
    has_keys = http is not None and KEYS_VARIABLE in os.environ
    auth: Any = {"auth": dovetail.auth.ApiKeys.from_env(KEYS_VARIABLE)} if has_keys else {}
    gateway = dovetail.Server(name or _folder_name(path), **auth)
    if http is not None and not has_keys:
        _refuse_open_gateway(path, servers, gateway.http_options(http, running=True).host)
    sign_in = _sign_in() if http is None else None  # over HTTP, all callers would use the sign-in of one user
    for each, server in servers.items():
        proxy = dovetail.Proxy(server, name=each, auth=sign_in if server.needs_auth else None)
        gateway.mount(proxy, namespace=None if only else namespace_of(each))
    return gateway


def _folder_name(path: str) -> str:
    folders = Path(path).resolve().parents
    return next((each.name for each in folders if not each.name.startswith(".")), "") or "gateway"


def namespace_of(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip("_.-")[:64] or "server"


def _usable_servers(path: str) -> dict[str, ListedServer]:
    """The servers of a file that can be mounted; the problems of others are shown."""
    try:
        listed = read_servers(path)
    except SetupError as failure:
        raise BadTarget(str(failure)) from None
    usable, owners = dict[str, ListedServer](), dict[str, str]()  # owners by namespace
    for name, server in listed.items():
        problem = server.problem
        if not problem and (owner := owners.setdefault(namespace_of(name).lower(), name)) != name:
            problem = f"The servers {owner!r} and {name!r} would have the same names; rename one of them"
        if problem:
            terminal.err(f"{path}: {terminal.one_line(problem, 1_000)}; {name!r} is left out", fg="yellow")
        else:
            usable[name] = server
    if not usable:
        raise SetupError(f"{path} has no server that can be used" if listed else f"{path} names no servers")
    return usable


def _refuse_open_gateway(path: str, servers: Mapping[str, ListedServer], host: str) -> None:
    """Raise SetupError if strangers on the network could use the commands or the credentials of the user."""
    commands = [name for name, server in servers.items() if not isinstance(server.target, str)]
    senders = [name for name, server in servers.items() if server.options.get("headers")]
    if is_loopback(host) or not (commands or senders):
        return
    what = f"starts commands ({', '.join(commands)})" if commands else f"sends your headers ({', '.join(senders)})"
    fix = f"set {KEYS_VARIABLE}=alice:key1,bob:key2 to let only these callers in, or listen at 127.0.0.1"
    raise SetupError(f"{path} {what}, which all who reach host={host!r} could use; {fix}")
