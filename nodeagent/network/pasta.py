"""Networks of sessions of an agent without root: descriptions for shims (`shim/pasta.py`), tested at the start.

pasta (package passt) and not slirp4netns: it opens a socket of the machine for each connection instead of a TCP
of its own, and can be prevented from forwarding to the machine's loopback.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.network.rules import (
    NoNetwork,
    free_subnet,
    hosts_file,
    is_ipv4,
    is_within,
    local_addresses,
    nameservers_of,
    networks_at,
    resolv_conf,
    uplinks,
)
from nodeagent.network.session_network import RESOLVED_BY, NetworkFacts, text_of, write_files
from nodeagent.runtimes.launcher import shim_command

if TYPE_CHECKING:
    from nodeagent.shim.pasta import PastaNetwork

_INTERFACE = "eth0"
_LINK_LOCAL = ipaddress.IPv4Network("169.254.0.0/16")
_LOOPBACK = ipaddress.IPv4Network("127.0.0.0/8")
_PATH = "/usr/bin:/bin:/usr/local/bin:/usr/sbin:/sbin"
_TRIAL_WITHIN_S = 30.0
_ROUTES = Path("/proc/net/route")
_ADDRESSES = Path("/proc/net/fib_trie")
_INTERFACES = Path("/sys/class/net")
_OPTIONS = (
    "--foreground",
    "--quiet",
    "--ipv4-only",
    "--config-net",
    # nothing is forwarded between the machine's loopback and the session's
    *("--tcp-ports", "none", "--udp-ports", "none", "--tcp-ns", "none", "--udp-ns", "none"),
    "--no-map-gw",
    "--no-dhcp",
    "--ns-ifname",
    _INTERFACE,
)


class SessionPasta:
    """Describes the networks of sessions, which their shims create. Blocking; thread-safe.

    Args:
        data: the agent's data folder.
        program: path of pasta.
        subnet: addresses that this machine does not use otherwise.
        nameservers: resolvers set by an administrator.
        metadata: addresses and ranges closed to sessions.
    """

    def __init__(
        self,
        data: Path,
        program: str,
        subnet: ipaddress.IPv4Network,
        *,
        nameservers: Sequence[str],
        metadata: Sequence[str],
    ) -> None:
        self._folder = data / "network"
        self._program = program
        self._subnet = subnet
        self._nameservers = nameservers
        self._metadata = metadata

    def files(self) -> Mapping[str, Path]:
        """Return replacements of files in /etc, from the machine's current ones. Raises OSError."""
        try:
            names = self.names()
        except NoNetwork as error:
            raise OSError(errno.ENETUNREACH, str(error)) from error
        return write_files(self._folder, names)

    def content(self) -> PastaNetwork:
        """Return the description for the next session's shim: addresses of this machine may have changed."""
        return self._described(self._closed())

    def trial(self) -> PastaNetwork:
        """Return the same with this machine open."""
        return self._described([])

    def ready(self) -> None:
        """None is created ahead."""
        return

    def namespace(self) -> None:
        """None: the shim creates it."""
        return

    def close(self) -> None:
        """Do nothing: none is ready."""

    def names(self) -> dict[str, str]:
        """Return a session's files for name resolution, path to text. Raises NoNetwork."""
        _, text = self._resolvers()
        hosts = hosts_file(text_of(Path("/etc/hosts")), socket.gethostname())
        return {"/etc/resolv.conf": text, "/etc/hosts": hosts}

    def _described(self, closed: Sequence[ipaddress.IPv4Network]) -> PastaNetwork:
        gateway, address = self._subnet[1], self._subnet[2]
        argv = [self._program, *_OPTIONS, "--address", str(address), "--netmask", "255.255.255.252"]
        argv += ["--gateway", str(gateway)]
        is_asked, _ = self._resolvers()
        if is_asked:
            argv += ["--dns-forward", str(self._forward)]
            argv += [word for one in self._nameservers for word in ("--dns", one)]
        return {
            "argv": argv,
            "interface": _INTERFACE,
            "closed": [(str(one.network_address), one.prefixlen) for one in closed],
        }

    @property
    def _forward(self) -> ipaddress.IPv4Address:
        """The session's resolver if the real one's address is closed to it."""
        return self._subnet[5]

    def _resolvers(self) -> tuple[bool, str]:
        """Return whether pasta resolves names for sessions, like the machine, and the sessions' resolv.conf.

        It does if the resolver is closed to them: on this machine, or at a metadata service's address. Otherwise they
        ask it directly, since old versions forward no long answers (by TCP). Raises NoNetwork.
        """
        texts = [text_of(path) for path in RESOLVED_BY]
        try:
            text = resolv_conf(texts, self._nameservers)
        except NoNetwork:
            if not any(is_ipv4(one) for one in nameservers_of(texts[0])):
                raise
            text = texts[0]
        servers = [one for one in nameservers_of(text) if is_ipv4(one)]
        if not servers or not is_within(servers[0], [_LOOPBACK, *self._closed()]):
            return False, text
        others = [line for line in text.splitlines() if line.split()[:1] != ["nameserver"]]
        return True, "\n".join([f"nameserver {self._forward}", *others, ""])

    def _closed(self) -> list[ipaddress.IPv4Network]:
        """Return this machine's addresses, the containers and virtual machines on it, and metadata services."""
        routes = text_of(_ROUTES)
        bridges = [
            place.parent.name
            for place in _INTERFACES.glob("*/bridge")
            if place.parent.name not in uplinks(routes)
        ]
        return sorted(
            ipaddress.collapse_addresses(
                [
                    _LINK_LOCAL,
                    *local_addresses(text_of(_ADDRESSES)),
                    *networks_at(bridges, routes),
                    *(
                        network
                        for one in self._metadata
                        if isinstance(network := ipaddress.ip_network(one), ipaddress.IPv4Network)
                    ),
                ]
            )
        )


def probe_pasta(
    data: Path,
    *,
    subnet: str,
    nameservers: Sequence[str],
    metadata: Sequence[str],
) -> NetworkFacts:
    """Create such a network and try a connection through it; blocks for some 200 ms. The caller is not root."""
    open_reason = (
        "gangs and sessions that ask for it have the machine's network, and the agent is not root"
    )
    try:
        network = _tried(data, subnet, nameservers, metadata)
    except (NoNetwork, OSError) as error:
        reason = f"the agent is not root, and {error}"
        return NetworkFacts(reason=reason, open_reason=reason)
    return NetworkFacts(network=network, open_reason=open_reason if metadata else "")


def _tried(
    data: Path, subnet: str, nameservers: Sequence[str], metadata: Sequence[str]
) -> SessionPasta:
    program = shutil.which("pasta", path=_PATH)
    if program is None:
        raise NoNetwork("there is no program pasta: install it (package passt)")
    routes = text_of(_ROUTES)
    if not uplinks(routes):
        raise NoNetwork("this machine has no default route, which pasta needs")
    network = SessionPasta(
        data,
        program,
        free_subnet(subnet, routes),
        nameservers=nameservers,
        metadata=metadata,
    )
    network.names()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.connect(("192.0.2.1", 9))  # nothing is sent: it finds the outgoing address
        host = asked.getsockname()[0]
    with socket.create_server((host, 0)) as server:
        port = server.getsockname()[1]
        command = shim_command("pasta", json.dumps(network.trial()), host, str(port))
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_TRIAL_WITHIN_S,
                check=False,
                env={},
                cwd="/",
            )
        except subprocess.TimeoutExpired as error:
            raise NoNetwork("pasta: no connection within 30 s") from error
    words = (done.stdout.strip() or done.stderr.strip()).splitlines()
    if words or done.returncode:
        raise NoNetwork(words[-1] if words else f"its trial ended with {done.returncode}")
    return network
