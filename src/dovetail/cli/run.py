"""`dovetail run`: serves the server of a target over stdio or HTTP."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

import dovetail
from dovetail import cli
from dovetail.cli.target import BadTarget, load_target, split_config_target
from dovetail.errors import SetupError
from dovetail.registry.registration import NAMES, SWITCH, TEXT, Kind
from dovetail.transports.http.options import KINDS, STATE, HttpOptions, read_option

if TYPE_CHECKING:
    from dovetail.server import Server

BUNDLED = "dovetail.reference:create_server"

EXAMPLES = """
\b
Examples:
  dovetail run                                     the bundled reference server, http://127.0.0.1:8000/console/
  dovetail run server.py                           the Server object in server.py, over stdio
  dovetail run server.py --state sqlite:state.db   the same, with state that outlives it
  dovetail run server.py:weather                   the one of that name, or made by the function of that name
  dovetail run package.module:server --transport http --port 9000
  dovetail run server.py --transport http --host 0.0.0.0 --workers 4 --allowed-hosts mcp.example.com
  dovetail run server.py --transport http --state redis://127.0.0.1:6379/0
  dovetail run mcp.json --transport http           all servers that an mcp.json names, behind one URL
  dovetail run openapi.yaml                        the operations of an HTTP API as tools, without credentials
  dovetail run https://example.com/mcp             that server over stdio, for hosts that only start commands

Every option can also be set by an environment variable: --max-body-bytes by DOVETAIL_MAX_BODY_BYTES. Ctrl-C ends it,
with the exit code 0.
"""

HELP = {
    "host": "Address to listen at.",
    "port": "Port to listen at; 0 for any that is free.",
    "path": "Path of the MCP endpoint.",
    "workers": "Number of processes.",
    "state": "Where sessions and state live: redis://host/0, rediss://, redis+sentinel://, sqlite:///path.",
    "sse": "Also serve HTTP+SSE of 2024-11-05, at /sse.",
    "stateless": "Serve older clients without sessions.",
    "allowed_hosts": "Host names that requests may carry, as in example.com or *.example.com. Repeat, or use commas.",
    "allowed_origins": "Origins of web pages that may send requests. Repeat, or use commas.",
    "cors": "Answer the browsers of allowed origins.",
    "public_url": "URL of the MCP endpoint as clients see it; for servers with auth.",
    "trusted_proxies": "Addresses or networks whose X-Forwarded-For is believed, or unix. Repeat, or use commas.",
    "access_log": "One line in the log for each request.",
    "metrics": "Metrics for Prometheus at /metrics, for this machine.",
    "metrics_token": "Token with which other machines may read them; better in DOVETAIL_METRICS_TOKEN.",
    "max_body_bytes": "Largest body of a request.",
    "body_timeout": "Seconds for a body to arrive.",
    "max_header_bytes": "Largest head of a request.",
    "max_headers": "Most headers of a request.",
    "header_timeout": "Seconds for the headers to arrive.",
    "max_connections": "Most connections of a worker.",
    "max_sessions": "Most sessions.",
    "session_timeout": "Seconds without a request that end a session.",
    "max_streams": "Most open streams.",
    "max_per_caller": "Most sessions, and most open streams, of one caller.",
    "event_timeout": "Seconds that a stream can be resumed.",
    "keep_alive": "Seconds between comments on a silent stream.",
    "drain_delay": "Seconds to accept on after a signal, while /ready says no.",
    "drain_timeout": "Seconds for calls in flight to finish after a signal.",
    "backlog": "Connections that may wait to be accepted.",
}
ALIASES = {"trusted_proxies": ["--trusted-proxy"]}
DEFAULTS = HttpOptions()

Function = Callable[..., Any]


def http_options(*names: str) -> Callable[[Function], Function]:
    """The options for these parameters of `Server.run`."""

    def decorate(function: Function) -> Function:
        for name in reversed(names):
            function = _option(name, KINDS[name])(function)
        return function

    return decorate


def _option(name: str, kind: Kind) -> Callable[[Function], Function]:
    flag, default = f"--{name.replace('_', '-')}", getattr(DEFAULTS, name)
    if isinstance(default, bool):
        default = "on" if default else "off"
    shown = f"{default:g}" if isinstance(default, float) else default
    text = HELP[name] if default in (None, ()) else f"{HELP[name]} [default: {shown}]"
    if kind is SWITCH:
        return click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=text)
    metavar = "TEXT" if kind in (TEXT, NAMES, STATE) else "NUMBER"
    flags = [flag, *ALIASES.get(name, ())]
    return click.option(*flags, name, metavar=metavar, multiple=kind is NAMES, callback=_read, help=text)


def _read(_context: click.Context, parameter: click.Parameter, given: Any) -> Any:
    """The text as a value for `Server.run`; None if the option is not given."""
    name = str(parameter.name)
    text = ",".join(given) if isinstance(given, tuple) else given
    if not text:
        return None
    try:
        return read_option(text, KINDS[name], parameter.opts[0])
    except SetupError as failure:
        raise click.UsageError(str(failure)) from None


def _set_log_format(_context: click.Context, _parameter: click.Parameter, given: str | None) -> None:
    """`server.run` reads it from the environment, also in the process that `dovetail dev` starts."""
    if given:
        os.environ["DOVETAIL_LOG_FORMAT"] = given


log_format_option = click.option(
    "--log-format", type=click.Choice(["text", "json"]), envvar="DOVETAIL_LOG_FORMAT", expose_value=False,
    callback=_set_log_format, help="Lines of the log: text, or objects of JSON. [default: text]",
)  # fmt: skip


def console_options(function: Function) -> Function:
    on = click.option(
        "--console/--no-console", default=None, envvar="DOVETAIL_CONSOLE",
        help="A page to try the server out, at /console. [default: off; on for the bundled server]",
    )  # fmt: skip
    remote = click.option(
        "--console-remote", is_flag=True, envvar="DOVETAIL_CONSOLE_REMOTE",
        help="The same for callers on other machines: they see what clients do. Needs --allowed-hosts.",
    )  # fmt: skip
    return on(remote(function))


@click.command("run", epilog=EXAMPLES)
@click.argument("target", required=False)
@click.option(
    "--transport", type=click.Choice(["stdio", "http"]), envvar="DOVETAIL_TRANSPORT",
    help="How clients reach it. [default: stdio; http for the bundled server]",
)  # fmt: skip
@click.option(
    "--name", metavar="TEXT", envvar="DOVETAIL_NAME",
    help="Name of the server for an mcp.json or a URL. [default: the folder of the file, or the host]",
)  # fmt: skip
@log_format_option
@console_options
@http_options(*HELP)
def command(
    target: str | None,
    transport: str | None,
    name: str | None,
    console: bool | None,
    console_remote: bool,
    **options: Any,
) -> None:
    """Serve TARGET: a Python file, file.py:name, package.module:name or an OpenAPI document.

    An mcp.json is served as a gateway to all its servers, and the URL of a server as one on stdio. Without TARGET the
    bundled reference server is served.
    """
    transport = transport or ("stdio" if target else "http")
    given = {name: value for name, value in options.items() if value is not None}
    if transport != "http":
        others = [name for name in given if name != "state"]
        if typed := [*others, *_typed(console=console, console_remote=console_remote)]:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in typed)
            raise click.UsageError(f"{flags}: only with --transport http")
        console = False
    if console is None:
        console = console_remote or target is None
    try:
        server = _load_server(target or BUNDLED, name, given if transport == "http" else None)
        if console:
            given["routes"] = dovetail.Console(server, remote=console_remote).routes()
        server.run(transport, **given)  # type: ignore[arg-type]  # click has checked it
    except BadTarget as failure:
        raise click.UsageError(str(failure)) from None
    except SetupError as failure:
        raise click.ClickException(str(failure)) from None


def _load_server(target: str, name: str | None, http: dict[str, Any] | None) -> "Server":
    if "://" in target or split_config_target(target) is not None:
        server: Server = cli.gateway.load_gateway(target, name, http)
        return server
    if _typed(name=name is not None):
        raise click.UsageError("--name: only for an mcp.json or a URL; a program names its server itself")
    return load_target(target)


def _typed(**switches: bool | None) -> list[str]:
    """The switches that are on the command line. An environment variable may be meant for other servers."""
    source = click.get_current_context().get_parameter_source
    return [name for name, is_on in switches.items() if is_on and source(name) is ParameterSource.COMMANDLINE]
