"""Where an app is mounted: a scope comes in, the path below that point goes out; and how it gets into a host's app."""

from typing import Any

from dovetail.errors import SetupError
from dovetail.transports.asgi import App, Receive, Scope, Send, is_below


def route_of(scope: Scope) -> str:
    """The path below where the app is mounted, without a slash at its end.

    Some hosts leave `path` whole, some cut off where the app is mounted. Of what a proxy has cut off, only Starlette
    tells how much that is.
    """
    path: str = scope["path"]
    if not scope.get("root_path"):
        return path.rstrip("/")
    root: str = scope["root_path"].rstrip("/")
    for prefix in (root, root.removeprefix(scope.get("app_root_path", ""))):
        if prefix and is_below(path, prefix):
            return path[len(prefix) :].rstrip("/")
    return path.rstrip("/")


def mount(app: App, host: Any, path: str) -> None:
    """In a FastAPI or Starlette app, at `path` itself and below it."""
    if not path.startswith("/") or path.endswith("/"):
        raise SetupError(f'mount_on: path={path!r} is not possible; it must be like "/mcp"')
    if getattr(host, "prefix", ""):
        raise SetupError(f"mount_on: a router with prefix={host.prefix!r} forgets it for mounts; mount on the app")
    host.add_route(path, _Here(app))
    host.mount(path, app)


class _Here:
    """The app at exactly the path that a host has found; not a function, for those are wrapped by the host."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        root: str = scope.get("root_path", "")
        whole = scope["path"] if is_below(scope["path"], root) else root + scope["path"]
        inner = {**scope, "root_path": whole, "app_root_path": scope.get("app_root_path", root)}
        await self._app(inner, receive, send)
