"""Interfaces, addresses and routes of Linux by its own interface for them (rtnetlink): what namespaces need.

A `Netlink` belongs to the network namespace of the thread that made it, for good. Namespaces are made and
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
        """Itself."""
        return self

    def __exit__(self, *_exception: object) -> None:
        """Close the socket."""
        self._socket.close()

    def add_bridge(self, name: str) -> None:
        """Make a bridge that keeps its hardware address.

        One that was not given is that of some port, and changes as ports come and go: then what
        others have learned of it is wrong, and their packets are lost until they ask again.
        """
        address = b"\x02" + hashlib.sha256(name.encode()).digest()[:5]  # locally administered
        body = _named(name) + _attribute(_IFLA_ADDRESS, address) + _kind("bridge")
        self._change(_NEWLINK, body, _CREATE | _EXCL)

    def add_pair(
        self, name: str, peer: str, namespace: int, *, mtu: int, bridge: int | None = None
    ) -> None:
        """Make a pair of interfaces: `name` here, at a bridge, and `peer` in the namespace of a descriptor.

        Raises FileExistsError where one of that name is here.
        """
        # The kernel's default are queues for each processor, which it makes files in /sys of, and which a
        # pair without programs of XDP has no use for.
        both = _number(_IFLA_MTU, mtu)
        both += _number(_IFLA_NUM_TX_QUEUES, 1) + _number(_IFLA_NUM_RX_QUEUES, 1)
        far = _named(peer) + _number(_IFLA_NET_NS_FD, namespace) + both
        near = _named(name) + both
        if bridge is not None:
            near += _number(_IFLA_MASTER, bridge)
        near += _kind("veth", _nested(_VETH_INFO_PEER, far))
        self._change(_NEWLINK, near, _CREATE | _EXCL)

    def isolate(self, name: str) -> None:
        """Have a port of a bridge reach no other isolated port of it."""
        info = _text(_INFO_SLAVE_KIND, "bridge")
        info += _nested(_INFO_SLAVE_DATA, _attribute(_BRPORT_ISOLATED, b"\x01"))
        self._change(_NEWLINK, _named(name) + _nested(_IFLA_LINKINFO, info))

    def keep_without_address(self, name: str) -> None:
        """Give an interface no IPv6 address of its own when it is set up.

        It needs none to be a port of a bridge, and every address that comes to a machine or leaves it makes
        browsers there abort what they load (ERR_NETWORK_CHANGED). A kernel without IPv6 has none to give.
        """
        mode = _attribute(_IFLA_INET6_ADDR_GEN_MODE, _NO_ADDRESS)
        spec = _nested(_IFLA_AF_SPEC, _nested(socket.AF_INET6, mode))
        unsupported = (errno.EAFNOSUPPORT, errno.EOPNOTSUPP)
        self._change(_SETLINK, _named(name) + spec, passes=unsupported)

    def set_up(self, name: str) -> None:
        """Have an interface work."""
        self._change(_NEWLINK, _named(name, flags=_IFF_UP))

    def index_of(self, name: str) -> int:
        """The number of an interface."""
        return self.link(name).index

    def link(self, name: str) -> Link:
        """An interface."""
        answer = self._ask(_GETLINK, _named(name))
        _, _, index, _, _ = _LINK.unpack_from(answer)
        values = _values(answer[_LINK.size :])
        (mtu,) = struct.unpack("=I", values[_IFLA_MTU])
        return Link(index=index, mtu=mtu)

    def remove_link(self, name: str) -> None:
        """Remove an interface, where it is there."""
        self._change(_DELLINK, _named(name), passes=(errno.ENODEV,))

    def add_address(self, index: int, address: ipaddress.IPv4Interface) -> None:
        """Give an interface an address, where it has not."""
        packed = address.ip.packed
        body = _ADDRESS.pack(socket.AF_INET, address.network.prefixlen, 0, 0, index)
        body += _attribute(_IFA_LOCAL, packed) + _attribute(_IFA_ADDRESS, packed)
        self._change(_NEWADDR, body, _CREATE | _EXCL, passes=(errno.EEXIST,))

    def add_default_route(self, index: int, gateway: ipaddress.IPv4Address) -> None:
        """Send everything to a gateway at an interface, whatever the interface's own address is."""
        main = (_RT_TABLE_MAIN, _RTPROT_STATIC, 0, _RTN_UNICAST, _RTNH_F_ONLINK)
        body = _ROUTE.pack(socket.AF_INET, 0, 0, 0, *main)
        body += _attribute(_RTA_GATEWAY, gateway.packed) + _number(_RTA_OIF, index)
        self._change(_NEWROUTE, body, _CREATE | _EXCL)

    def _change(
        self, kind: int, body: bytes, flags: int = 0, *, passes: tuple[int, ...] = ()
    ) -> None:
        """Ask for a change; an error that is in `passes` is none."""
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
    """A descriptor of a new network namespace, in which `prepare` has run, with that descriptor.

    Who closes it last, of those with processes in it and with descriptors, ends it.
    """
    return in_thread_that_ends(lambda: enter_new_namespace(prepare))


def enter_new_namespace(prepare: Callable[[int], None]) -> int:
    """`new_namespace` that leaves the calling thread in it, which is to do nothing else any more."""
    namespaces.new_network()
    descriptor = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        prepare(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def inside(namespace: int, work: Callable[[], T]) -> T:
    """What `work` gives in the network namespace of a descriptor."""

    def enter() -> T:
        namespaces.enter_network(namespace)
        return work()

    return in_thread_that_ends(enter)


def in_thread_that_ends(work: Callable[[], T]) -> T:
    """What `work` gives in a thread that does nothing else, which may enter namespaces."""
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
    """What is about the interface of a name."""
    return _link(flags=flags) + _text(_IFLA_IFNAME, name)


def _values(attributes: bytes) -> dict[int, bytes]:
    """Attributes by their kind."""
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
