"""Listeners of a server: plaintext on loopback and Unix sockets, TLS everywhere else."""

from __future__ import annotations

import os
import socket
import stat
import threading
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import psutil

from nsml.common.hosts import is_loopback

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from controlplane.access.authority import Authority, KeyPair


class ListenRefused(Exception):
    """Refused to listen there; the message says where, why, and what to do instead."""


class CannotListen(ListenRefused):
    """The system refuses it: another address may work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """HOST:PORT (port 0: any free one), or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def is_private(self) -> bool:
        """Whether it is unreachable from other machines."""
        return bool(self.path) or is_loopback(self.host)

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read `HOST:PORT`, `[IPV6]:PORT` or `unix:PATH`.

    Raises:
        ListenRefused: it is neither.
    """
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path or not Path(path).is_absolute():
            raise ListenRefused(f"refuse to listen on {text}: the path must be absolute")
        return Address(path=path)
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ListenRefused(f"refuse to listen on {text}: write HOST:PORT or unix:/PATH")
    return Address(host=host, port=int(port))


class Identity:
    """The certificate of our TLS listeners, renewed while they run.

    gRPC requests it at every handshake, in threads of its own.

    Args:
        hosts: our names and addresses for clients.
    """

    def __init__(self, authority: Authority, hosts: Sequence[str]) -> None:
        self._authority = authority
        self._hosts = tuple(hosts)
        self._lock = threading.Lock()
        self._pair = authority.issue_server(self._hosts)

    def current(self) -> KeyPair:
        """Return the certificate in use, a new one if it was about to expire."""
        with self._lock:
            if self._authority.needs_renewal(self._pair):
                self._pair = self._authority.issue_server(self._hosts)
            return self._pair

    def credentials(self, *, require_node: bool) -> grpc.ServerCredentials:
        """Return credentials for a listener; `require_node` requires client certificates."""
        roots = self._authority.pem if require_node else None
        shown = self.current()

        def configuration(pair: KeyPair) -> grpc.ServerCertificateConfiguration:
            return grpc.ssl_server_certificate_configuration([(pair.key, pair.chain)], roots)

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal shown
            newest = self.current()
            if newest is shown:
                return None
            shown = newest
            return configuration(newest)

        return grpc.dynamic_ssl_server_credentials(
            configuration(shown),
            renewed,  # type: ignore[arg-type] # the stubs forget None: no change
            require_client_authentication=require_node,
        )


def listen_plain(server: grpc.aio.Server, text: str) -> Address:
    """Listen without TLS, on loopback or a Unix socket; return the address with its port.

    Raises:
        ListenRefused: other machines could reach it.
        CannotListen: it is in use.
    """
    address = parse_address(text)
    if not address.is_private:
        raise ListenRefused(
            f"refuse to listen on {address} without TLS: tokens and data would cross the network "
            "readable; listen on loopback, or set the names of this host so that TLS is used"
        )
    if address.path:
        return _listen_unix(server, address)
    return _bound(address, lambda: server.add_insecure_port(str(address)))


def listen_tls(server: grpc.aio.Server, text: str, identity: Identity) -> Address:
    """Listen with TLS for users with tokens; return the address with its port."""
    address = parse_address(text)
    credentials = identity.credentials(require_node=False)
    return _bound(address, lambda: server.add_secure_port(str(address), credentials))


def listen_agents(server: grpc.aio.Server, text: str, identity: Identity) -> Address:
    """Listen with mutual TLS: only nodes that this authority signed get through the handshake.

    Agents have a port of their own because gRPC can require a client certificate but not make it
    optional.
    """
    address = parse_address(text)
    credentials = identity.credentials(require_node=True)
    return _bound(address, lambda: server.add_secure_port(str(address), credentials))


def take_port(text: str) -> tuple[Address, socket.socket]:
    """Listen on HOST:PORT for a server other than gRPC; return the address with its port, and the socket.

    Raises:
        ListenRefused: it is not HOST:PORT.
        CannotListen: it is in use.
    """
    address = parse_address(text)
    if address.path:
        raise ListenRefused(f"refuse to listen on {text}: write HOST:PORT")
    taken = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((address.host, address.port))
        taken.listen()
    except OSError as error:
        taken.close()
        raise _cannot_listen(address) from error
    return Address(host=address.host, port=int(taken.getsockname()[1])), taken


def names_of_this_host(extra: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names for a listener's certificate: `extra`, this host's names, its addresses."""
    interfaces = psutil.net_if_addrs().values()
    addresses = [
        address.address
        for interface in interfaces
        for address in interface
        if address.family in {socket.AF_INET, socket.AF_INET6} and "%" not in address.address
    ]
    found = [*extra, socket.gethostname(), socket.getfqdn(), "localhost", *addresses]
    return tuple(dict.fromkeys(name for name in found if name not in {"", "0.0.0.0", "::"}))  # noqa: S104


def networks_of_this_host() -> list[IPv4Network | IPv6Network]:
    """Return the networks of this machine's interfaces; without a mask just the address."""
    found: list[IPv4Network | IPv6Network] = []
    for addresses in psutil.net_if_addrs().values():
        for one in addresses:
            if one.family not in {socket.AF_INET, socket.AF_INET6}:
                continue
            host = ip_address(one.address.partition("%")[0])
            mask = int(ip_address(one.netmask)) if one.netmask else -1
            length = host.max_prefixlen if mask < 0 else mask.bit_count()
            found.append(ip_network(f"{host}/{length}", strict=False))
    return found


def host_for_others(listener: Address, names: Sequence[str] = ()) -> str:
    """Return a listener's name or address for other machines.

    The first of `names`; else the address that it listens on; for a listener on all addresses the
    one that faces the network, because a host's own name often does not resolve elsewhere.
    """
    if names:
        return names[0]
    if listener.host not in {"0.0.0.0", "::"}:  # noqa: S104 - compared, not bound
        return listener.host
    return _address_facing_the_network() or socket.gethostname()


def _address_facing_the_network() -> str:
    """Return our address on the default route; "" without one."""
    for family, elsewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            # a datagram socket sends nothing when it connects: the kernel only picks the route
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((elsewhere, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return ""


def _listen_unix(server: grpc.aio.Server, address: Address) -> Address:
    path = Path(address.path)
    if len(os.fsencode(path)) > 100:
        raise ListenRefused(f"refuse to listen on {address}: the path is longer than 100 bytes")
    _remove_dead_socket(path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    bound = _bound(address, lambda: server.add_insecure_port(str(address)))
    path.chmod(0o600)
    return bound


def _remove_dead_socket(path: Path) -> None:
    """Remove the socket of a killed server; refuse a live one or any other file."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ListenRefused(f"refuse to listen on unix:{path}: a file is in the way")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise ListenRefused(f"refuse to listen on unix:{path}: another process listens there")


def _bound(address: Address, bind: Callable[[], int]) -> Address:
    try:
        port = bind()
    except RuntimeError as error:
        raise _cannot_listen(address) from error
    return address if address.path else Address(host=address.host, port=port)


def _cannot_listen(address: Address) -> CannotListen:
    return CannotListen(
        f"cannot listen on {address}: it is taken or not an address of this machine; "
        "choose another port"
    )
