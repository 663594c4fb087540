"""The addresses that a server listens at: host and port come in, bound sockets go out, or SetupError in plain words."""

import contextlib
import errno
import os
import socket
import sys

from dovetail.errors import SetupError

Address = tuple[socket.AddressFamily, tuple[str, int]]

ANY_IPV4 = "0.0.0.0"
ANY_IPV6 = "::"  # also takes in IPv4, where the system can do that
TRIES = 5  # to find one free port for several addresses


def bind(host: str, port: int) -> list[socket.socket]:
    """One socket for each address of the host, all with the same port; none of them listens yet."""
    addresses = _addresses(host, port)
    for attempt in range(TRIES if port == 0 else 1):
        try:
            return _bind_all(addresses, port)
        except OSError as failure:
            if failure.errno != errno.EADDRINUSE or attempt == TRIES - 1 or port:
                raise explained(failure, host, port) from None
    raise AssertionError("unreachable")


def port_of(sockets: list[socket.socket]) -> int:
    return int(sockets[0].getsockname()[1])


def are_everywhere(sockets: list[socket.socket]) -> bool:
    """Whether they are bound to no address in particular, in whatever way that was written."""
    return any(each.getsockname()[0] in (ANY_IPV4, ANY_IPV6) for each in sockets)


def url_of(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _addresses(host: str, port: int) -> list[Address]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        advice = '"127.0.0.1" serves this machine only, "0.0.0.0" every network that it is in'
        raise SetupError(f"host={host!r} is not known; {advice}") from None
    unique = {(family, address[:2]): None for family, _, _, _, address in found}
    return [(family, (str(address[0]), port)) for family, address in unique]


def _bind_all(addresses: list[Address], port: int) -> list[socket.socket]:
    bound: list[socket.socket] = []
    missing: OSError | None = None
    with contextlib.ExitStack() as stack:
        for family, (host, _) in addresses:
            try:
                one = stack.enter_context(_bind_one(family, host, port or (port_of(bound) if bound else 0)))
            except OSError as failure:
                if failure.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                missing = failure  # "localhost" often names an IPv6 address that the machine does not have
            else:
                bound.append(one)
        stack.pop_all()
    if not bound and missing is not None:
        raise missing
    return bound


def _bind_one(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    # Named, because asyncio sends small pieces at once only on sockets that say which protocol they speak.
    one = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if sys.platform == "win32":
            one.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:  # or else a server could not come back for a minute after its end
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != ANY_IPV6))
        one.bind((host, port))
    except BaseException:
        one.close()
        raise
    return one


def explained(failure: OSError, host: str, port: int) -> SetupError:
    where = f"host={host!r}, port={port}"
    if failure.errno == errno.EADDRINUSE:
        return SetupError(
            f"{where}: another program listens there; end it, or choose another port (0 for any that is free)"
        )
    if failure.errno in (errno.EACCES, errno.EPERM):
        return SetupError(f"{where}: the system does not allow that; ports from 1024 on need no special rights")
    if failure.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
        return SetupError(f'{where}: this machine has no such address; "0.0.0.0" stands for all that it has')
    return SetupError(f"{where}: {os.strerror(failure.errno or 0)}")
