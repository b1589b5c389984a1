"""A machine's network for tests: a namespace with an outside, containers beside it, and servers in both."""

from __future__ import annotations

import ipaddress
import socket
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

from nodeagent.network.netlink import Netlink, new_namespace

METADATA, METADATA_HERE, METADATA_IPV6 = "169.254.169.254", "100.100.100.200", "fd00:ec2::254"
"""The second and third are addresses of the machine itself, as of an agent of a cloud's that runs there."""
OUTSIDE, UPLINK = ipaddress.IPv4Address("203.0.113.2"), ipaddress.IPv4Interface("203.0.113.1/24")
NEIGHBOUR, NEIGHBOUR_IPV6 = "172.30.0.2", "fd00:172:30::2"

REACHES = """\
def reaches(address, family=socket.AF_INET):
    with socket.socket(family) as end:
        end.settimeout(2)
        try:
            end.connect(address)
            return end.recv(100).decode()
        except OSError as error:
            return error.__class__.__name__
"""
HEAD = f"import ctypes, json, os, socket, sys, time\n{REACHES}"
SERVES = """\
ends = [socket.create_server(("0.0.0.0", 0)), socket.socket(socket.AF_UNIX)]
ends[1].bind("\\0nsml-test-NAME"); ends[1].listen()
port = ends[0].getsockname()[1]
import threading
def serve(end):
    while True:
        end.accept()[0].sendall(b"mine")
for end in ends:
    threading.Thread(target=serve, args=(end,), daemon=True).start()
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    probe.connect(("203.0.113.2", 9)); address = probe.getsockname()[0]
print(json.dumps([port, address, reaches(("127.0.0.1", port)), reaches("\\0nsml-test-NAME", socket.AF_UNIX)]), flush=True)
"""
"""Serves on a TCP port and on an abstract socket; prints the port, its address, and whether it reaches both itself."""


def reaches_served(port: int, address: str) -> str:
    """A program that tries to reach a session that runs SERVES, by loopback, address and name of the socket."""
    return (
        f'print(json.dumps([reaches(("127.0.0.1", {port})), reaches(("{address}", {port})),'
        ' reaches("\\0nsml-test-NAME", socket.AF_UNIX)]))'
    )


class Answering(threading.Thread):
    """A server that sends a word to whoever connects, in the namespace of who made it."""

    def __init__(self, host: str, word: str, port: int = 0) -> None:
        super().__init__(daemon=True)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.listener = socket.create_server((host, port), family=family)
        self.word = word
        self.start()

    def run(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                with connection:
                    connection.sendall(self.word.encode())

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


class Names(threading.Thread):
    """Answers every question for a name with the same address."""

    def __init__(self, host: str) -> None:
        super().__init__(daemon=True)
        self.end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.end.bind((host, 53))
        self.start()

    def run(self) -> None:
        with suppress(OSError):
            while True:
                query, peer = self.end.recvfrom(512)
                asked = query[12 : query.index(b"\0", 12) + 5]
                answer = b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04" + OUTSIDE.packed
                is_ipv4 = asked[-4:-2] == b"\0\x01"
                count = b"\0\x01" if is_ipv4 else b"\0\0"
                head = query[:2] + b"\x81\x80\0\x01" + count + b"\0\0\0\0"
                self.end.sendto(head + asked + (answer if is_ipv4 else b""), peer)

    def close(self) -> None:
        self.end.close()


def outside_of_machine() -> int:
    """A namespace that the machine's only interface leads to, with a metadata service's address."""
    with Netlink() as host:
        host.set_up("lo")

        def furnish(descriptor: int) -> None:
            host.add_pair("uplink", "eth0", descriptor, mtu=1400)
            index = host.index_of("uplink")
            host.add_address(index, UPLINK)
            host.set_up("uplink")
            with Netlink() as far:
                lo, eth0 = far.index_of("lo"), far.index_of("eth0")
                far.set_up("lo")
                far.add_address(lo, ipaddress.IPv4Interface(METADATA))
                far.add_address(eth0, ipaddress.IPv4Interface(f"{OUTSIDE}/24"))
                far.set_up("eth0")
                far.add_default_route(eth0, UPLINK.ip)

        outside = new_namespace(furnish)
        host.add_default_route(host.index_of("uplink"), OUTSIDE)
    return outside


def neighbour_of_machine() -> int:
    """A namespace behind a bridge of the machine, as an engine makes them for containers."""
    with Netlink() as host:
        host.add_bridge("docker0")
        bridge = host.index_of("docker0")
        host.add_address(bridge, ipaddress.IPv4Interface("172.30.0.1/24"))
        host.set_up("docker0")
        Path("/proc/sys/net/ipv4/conf/docker0/forwarding").write_text("1")
        subprocess.run(
            ["ip", "address", "add", "fd00:172:30::1/64", "dev", "docker0", "nodad"], check=True
        )

        def furnish(descriptor: int) -> None:
            host.add_pair("port", "eth0", descriptor, mtu=1400, bridge=bridge)
            host.set_up("port")
            with Netlink() as far:
                index = far.index_of("eth0")
                far.add_address(index, ipaddress.IPv4Interface(f"{NEIGHBOUR}/24"))
                far.set_up("eth0")
                far.add_default_route(index, ipaddress.IPv4Address("172.30.0.1"))
            for command in (
                f"address add {NEIGHBOUR_IPV6}/64 dev eth0 nodad",
                "route add default via fd00:172:30::1",
            ):
                subprocess.run(["ip", "-6", *command.split()], check=True)

        return new_namespace(furnish)
