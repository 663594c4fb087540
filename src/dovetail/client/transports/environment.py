"""Proxies and certificates that the environment names: `HTTPS_PROXY`, `NO_PROXY`, `SSL_CERT_FILE` and the like.

aiohttp's `trust_env` is not used: it would also send passwords of ~/.netrc.
"""

import base64
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from dovetail.auth.fetch import is_loopback_host
from dovetail.client.transports.base import Headers, Origin, split_url
from dovetail.errors import SetupError

if TYPE_CHECKING:
    from ssl import SSLContext


class HttpProxy(NamedTuple):
    """An HTTP proxy, and the variable that names it."""

    url: str  # without user and password
    headers: Headers  # for the proxy; they are secret
    source: str

    def __repr__(self) -> str:
        return f"HttpProxy({self.shown})"

    @property
    def options(self) -> Mapping[str, Any]:
        """For a request by aiohttp."""
        return {"proxy": self.url, "proxy_headers": self.headers}

    @property
    def shown(self) -> str:
        return f"the proxy {self.url.partition('://')[2]} of {self.source}"


def find_proxy(origin: Origin) -> HttpProxy | None:
    """The proxy for an origin; None if there is none, if `NO_PROXY` has the host, and for this machine."""
    from urllib.request import getproxies, proxy_bypass  # late: only clients of URLs need it, and aiohttp loads it

    scheme, host, port = origin
    proxies = getproxies()
    kind = scheme if proxies.get(scheme) else "all"
    text = proxies.get(kind)
    is_local = is_loopback_host(host) or host.endswith(".localhost")
    if not text or is_local or proxy_bypass(host) or proxy_bypass(f"{host}:{port}"):
        return None
    source = max((name for name in os.environ if name.lower() == f"{kind}_proxy"), default="the system's settings")
    split, _ = split_url(text if "://" in text else f"http://{text}")
    if split is None or split.path not in ("", "/") or split.query or split.fragment:  # such as a password with a #
        example = "http://user:password@proxy.example.com:3128, with odd characters as %23"
        raise SetupError(f"Client: {source} names no HTTP proxy; write {example}, or add {host} to NO_PROXY")
    url, headers = f"{split.scheme}://{split.netloc.rpartition('@')[2]}", {}
    if split.username is not None:
        login = f"{unquote(split.username)}:{unquote(split.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    return HttpProxy(url, headers, source)


def tls_context(*urls: str) -> "SSLContext | None":
    """A context with the certificates of `SSL_CERT_FILE` and `SSL_CERT_DIR`; None if no URL needs one of its own."""
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if not (file or folder) or not any(url.lower().startswith("https:") for url in urls):
        return None
    import ssl  # late: only clients of URLs need it

    context = ssl.create_default_context()
    try:
        context.load_verify_locations(file or None, folder or None)  # OpenSSL itself skips a file that it can't read
    except OSError:
        named = f"SSL_CERT_FILE={file!r}" if file else f"SSL_CERT_DIR={folder!r}"
        raise SetupError(f"Client: {named} holds no certificates that can be read; correct or unset it") from None
    context.set_alpn_protocols(["http/1.1"])
    return context
