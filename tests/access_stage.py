"""A server with things for all callers, for writers and for admins, and wires with a principal."""

from typing import Any, Literal

from dovetail import Server
from dovetail.auth.principal import Principal
from wire import MODERN, Wire

ERAS = ("2025-11-25", MODERN)
NEEDED = ["notes:read", "notes:write"]
ANONYMOUS = None
READER = Principal(subject="ann", scopes=frozenset(["notes:read"]))
WRITER = Principal(subject="bob", scopes=frozenset([*NEEDED, "other"]))
ADMIN = Principal(subject="eve", claims={"admin": True})


class CallerWire(Wire):
    """A wire whose client is authenticated."""

    def __init__(self, server: Server, version: str | None, principal: Principal | None) -> None:
        super().__init__(server, version, principal=principal)


def is_admin(principal: Principal | None) -> bool:
    return principal is not None and principal.claims.get("admin") is True


def new_server(began: list[str] | None = None, **options: Any) -> Server:
    """For all callers, for writers, and for admins, one of each kind."""
    server = Server("access", version="1.0.0", **options)
    rules: dict[str, Any] = {"open": {}, "scoped": {"scopes": NEEDED}, "secret": {"authorize": is_admin}}
    for name, rule in rules.items():
        register(server, name, rule, [] if began is None else began)
    return server


def register(server: Server, name: str, rule: dict[str, Any], began: list[str]) -> None:
    @server.tool(name=name, **rule)
    def tool(number: int) -> str:
        began.append(name)
        return name

    @server.prompt(name=name, **rule)
    def prompt(kind: Literal["good", "bad"]) -> str:
        began.append(name)
        return name

    @server.resource(f"{name}://one", name=name, **rule)
    def resource() -> str:
        began.append(name)
        return name

    @server.resource(f"{name}://of/{{kind}}", name=name, **rule)
    def template(kind: Literal["good", "bad"]) -> str:
        began.append(name)
        return name
