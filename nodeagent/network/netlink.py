"""Interfaces, addresses and routes of Linux by rtnetlink, as far as namespaces need them.

A `Netlink` always uses the network namespace of the thread that created it. Namespaces are created and
entered by threads that end afterwards: no other thread of the agent is ever in one.
"""

from __future__ import annotations

import errno
import hashlib
import ipaddress
import os
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TypeVar

from nodeagent.shim import namespaces

_NEWLINK, _DELLINK, _GETLINK, _SETLINK = 16, 17, 18, 19
_NEWADDR, _NEWROUTE = 20, 24
_ERROR = 2
_REQUEST, _ACK, _EXCL, _CREATE = 1, 4, 0x200, 0x400
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_MASTER = 1, 3, 4, 10
_IFLA_LINKINFO, _IFLA_AF_SPEC, _IFLA_NET_NS_FD = 18, 26, 28
_IFLA_NUM_TX_QUEUES, _IFLA_NUM_RX_QUEUES = 31, 32
_IFLA_INET6_ADDR_GEN_MODE, _NO_ADDRESS = 8, b"\x01"
_INFO_KIND, _INFO_DATA, _INFO_SLAVE_KIND, _INFO_SLAVE_DATA = 1, 2, 4, 5
_VETH_INFO_PEER = 1
_BRPORT_ISOLATED = 33
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_OIF, _RTA_GATEWAY = 4, 5
_NESTED = 0x8000
_IFF_UP = 1
_RT_TABLE_MAIN, _RTPROT_STATIC, _RTN_UNICAST, _RTNH_F_ONLINK = 254, 4, 1, 4
_LINK, _ADDRESS, _ROUTE = struct.Struct("=BxHiII"), struct.Struct("=BBBBi"), struct.Struct("=8BI")
_HEADER = struct.Struct("=IHHII")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """An interface."""

    index: int
    mtu: int


class Netlink:
    """Requests to the kernel about the namespace of the calling thread. All raise OSError."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        self._socket.bind((0, 0))
        self._sequence = 0

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_exception: object) -> None:
        """Close the socket."""
        self._socket.close()

    def add_bridge(self, name: str) -> None:
        """Create a bridge with a fixed hardware address.

        By default it has that of a port, which changes with its ports: then others'
        ARP entries are wrong, and their packets are lost until they ask again.
        """
        address = b"\x02" + hashlib.sha256(name.encode()).digest()[:5]  # locally administered
        body = _named(name) + _attribute(_IFLA_ADDRESS, address) + _kind("bridge")
        self._change(_NEWLINK, body, _CREATE | _EXCL)

    def add_pair(
        self, name: str, peer: str, namespace: int, *, mtu: int, bridge: int | None = None
    ) -> None:
        """Create a pair of interfaces: `name` here, at a bridge, and `peer` in the namespace of a descriptor.

        Raises FileExistsError if that name exists here.
        """
        # By default the kernel creates queues for each processor, with files in /sys, which a
        # pair without XDP programs does not need.
        both = _number(_IFLA_MTU, mtu)
        both += _number(_IFLA_NUM_TX_QUEUES, 1) + _number(_IFLA_NUM_RX_QUEUES, 1)
        far = _named(peer) + _number(_IFLA_NET_NS_FD, namespace) + both
        near = _named(name) + both
        if bridge is not None:
            near += _number(_IFLA_MASTER, bridge)
        near += _kind("veth", _nested(_VETH_INFO_PEER, far))
        self._change(_NEWLINK, near, _CREATE | _EXCL)

    def isolate(self, name: str) -> None:
        """Isolate a port of a bridge from its other isolated ports."""
        info = _text(_INFO_SLAVE_KIND, "bridge")
        info += _nested(_INFO_SLAVE_DATA, _attribute(_BRPORT_ISOLATED, b"\x01"))
        self._change(_NEWLINK, _named(name) + _nested(_IFLA_LINKINFO, info))

    def keep_without_address(self, name: str) -> None:
        """Prevent an IPv6 address of an interface when it is set up.

        A port of a bridge needs none, and every address added to or removed from a machine makes
        browsers there abort what they load (ERR_NETWORK_CHANGED). No effect on a kernel without IPv6.
        """
        mode = _attribute(_IFLA_INET6_ADDR_GEN_MODE, _NO_ADDRESS)
        spec = _nested(_IFLA_AF_SPEC, _nested(socket.AF_INET6, mode))
        unsupported = (errno.EAFNOSUPPORT, errno.EOPNOTSUPP)
        self._change(_SETLINK, _named(name) + spec, passes=unsupported)

    def set_up(self, name: str) -> None:
        """Set an interface up."""
        self._change(_NEWLINK, _named(name, flags=_IFF_UP))

    def index_of(self, name: str) -> int:
        """Return the index of an interface."""
        return self.link(name).index

    def link(self, name: str) -> Link:
        """Return an interface."""
        answer = self._ask(_GETLINK, _named(name))
        _, _, index, _, _ = _LINK.unpack_from(answer)
        values = _values(answer[_LINK.size :])
        (mtu,) = struct.unpack("=I", values[_IFLA_MTU])
        return Link(index=index, mtu=mtu)

    def remove_link(self, name: str) -> None:
        """Remove an interface, if it exists."""
        self._change(_DELLINK, _named(name), passes=(errno.ENODEV,))

    def add_address(self, index: int, address: ipaddress.IPv4Interface) -> None:
        """Add an address to an interface, if missing."""
        packed = address.ip.packed
        body = _ADDRESS.pack(socket.AF_INET, address.network.prefixlen, 0, 0, index)
        body += _attribute(_IFA_LOCAL, packed) + _attribute(_IFA_ADDRESS, packed)
        self._change(_NEWADDR, body, _CREATE | _EXCL, passes=(errno.EEXIST,))

    def add_default_route(self, index: int, gateway: ipaddress.IPv4Address) -> None:
        """Send everything to a gateway at an interface, whatever the interface's own address."""
        main = (_RT_TABLE_MAIN, _RTPROT_STATIC, 0, _RTN_UNICAST, _RTNH_F_ONLINK)
        body = _ROUTE.pack(socket.AF_INET, 0, 0, 0, *main)
        body += _attribute(_RTA_GATEWAY, gateway.packed) + _number(_RTA_OIF, index)
        self._change(_NEWROUTE, body, _CREATE | _EXCL)

    def _change(
        self, kind: int, body: bytes, flags: int = 0, *, passes: tuple[int, ...] = ()
    ) -> None:
        """Request a change, ignoring errors in `passes`."""
        try:
            self._ask(kind, body, flags | _ACK)
        except OSError as error:
            if error.errno not in passes:
                raise

    def _ask(self, kind: int, body: bytes, flags: int = 0) -> bytes:
        self._sequence += 1
        size = _HEADER.size + len(body)
        self._socket.send(_HEADER.pack(size, kind, flags | _REQUEST, self._sequence, 0) + body)
        while True:
            answer = self._socket.recv(1 << 16)
            _, answered, _, sequence, _ = _HEADER.unpack_from(answer)
            if sequence != self._sequence:
                continue
            if answered == _ERROR:
                (number,) = struct.unpack_from("=i", answer, _HEADER.size)
                if number:
                    raise OSError(-number, os.strerror(-number))
            return answer[_HEADER.size :]


def new_namespace(prepare: Callable[[int], None]) -> int:
    """Create a network namespace, run `prepare` in it with its descriptor, and return that.

    It ends with its last process and descriptor.
    """
    return in_thread_that_ends(lambda: enter_new_namespace(prepare))


def enter_new_namespace(prepare: Callable[[int], None]) -> int:
    """Run `new_namespace` in the calling thread, which stays in it and must do nothing else."""
    namespaces.new_network()
    descriptor = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        prepare(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def inside(namespace: int, work: Callable[[], T]) -> T:
    """Return the result of `work` in the network namespace of a descriptor."""

    def enter() -> T:
        namespaces.enter_network(namespace)
        return work()

    return in_thread_that_ends(enter)


def in_thread_that_ends(work: Callable[[], T]) -> T:
    """Return the result of `work` in a thread of its own, which may enter namespaces."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again below, in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name="nsml-namespace")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _link(*, flags: int = 0) -> bytes:
    return _LINK.pack(0, 0, 0, flags, flags)


def _named(name: str, *, flags: int = 0) -> bytes:
    """Return a request about the interface of a name."""
    return _link(flags=flags) + _text(_IFLA_IFNAME, name)


def _values(attributes: bytes) -> dict[int, bytes]:
    """Return attributes by their kind."""
    values = {}
    while len(attributes) >= 4:
        size, kind = struct.unpack_from("=HH", attributes)
        values[kind] = attributes[4:size]
        attributes = attributes[(size + 3) & ~3 :]
    return values


def _attribute(kind: int, value: bytes) -> bytes:
    size = 4 + len(value)
    return struct.pack("=HH", size, kind) + value + bytes(-size % 4)


def _nested(kind: int, value: bytes) -> bytes:
    return _attribute(kind | _NESTED, value)


def _text(kind: int, value: str) -> bytes:
    return _attribute(kind, value.encode() + b"\0")


def _number(kind: int, value: int) -> bytes:
    return _attribute(kind, struct.pack("=I", value))


def _kind(name: str, data: bytes = b"") -> bytes:
    info = _text(_INFO_KIND, name)
    if data:
        info += _nested(_INFO_DATA, data)
    return _nested(_IFLA_LINKINFO, info)
