"""Networks of sessions on this machine: a namespace for each, behind a bridge, and the rules between.

The agent creates once, as root, named after its data folder:

- a bridge with an address, whose ports reach only the machine itself (`isolated`);
- a table of nftables: sessions reach the outside by the machine's address (masquerading), only the `session_ports`
  of the machine, and no metadata service of a cloud, which also holds in the machine's own network and in an
  engine's;
- a note of interfaces that forward for sessions alone (`ipv4/conf/UPLINK/forwarding`), removed with the bridge.

A session's namespace has a loopback of its own, and `eth0`. It lives as long as the session's processes: nothing
has to be removed, and an existing interface marks its address as used.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import ipaddress
import os
import random
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import structlog

from nodeagent.folders import write_atomically
from nodeagent.network.namespace_pool import NamespacePool
from nodeagent.network.netlink import (
    Netlink,
    enter_new_namespace,
    in_thread_that_ends,
    inside,
    new_namespace,
)
from nodeagent.network.rules import (
    HostNetworks,
    NetworkRules,
    NoNetwork,
    connections_of_all,
    free_subnet,
    hosts_file,
    resolv_conf,
    ruleset,
    subnet_of,
    uplinks,
)

if TYPE_CHECKING:
    from nodeagent.shim.pasta import PastaNetwork

RESOLVED_BY = (
    Path("/etc/resolv.conf"),
    Path("/run/systemd/resolve/resolv.conf"),
    Path("/run/NetworkManager/no-stub-resolv.conf"),
)
"""The machine's resolvers: its own file, and the upstream files of resolvers on its loopback."""
_STATE = Path("/run/nsml-networks")
"""Owners of the bridges and tables of this machine: a file per name with its data folder. In `lent/LINK/`
there is one for each that an interface forwards for, if it did not before."""
_TRIAL_WITHIN_S = 3.0
_INTERFACE = "eth0"
_PROGRAM_WITHIN_S = 20
_HOSTS = Path("/etc/hosts")
_SHOWN_AFTER_NS = 2_000_000_000
"""File changes closer together than the resolution of timestamps may look like one."""
_ROUTES = Path("/proc/net/route")
_CONNECTIONS = Path("/proc/sys/net/netfilter/nf_conntrack_max")
_FORWARDS_ALL = "ipv4/ip_forward"
_DOCKERS_CHAIN = "DOCKER-USER"

log = structlog.get_logger()


class Firewall:
    """This agent's table of nftables. Blocking.

    Args:
        table: its name.
        rules: returns its current text.
    """

    def __init__(self, table: str, rules: Callable[[], str]) -> None:
        self.table = table
        self._rules = rules
        self._applied = self._listed = ""

    def apply(self) -> None:
        """Apply the rules, replacing earlier ones.

        Raises:
            NoNetwork: not possible here.
        """
        text = self._rules()
        _nft("-f", "-", stdin=text)
        self._applied, self._listed = text, self._found()

    def restore(self) -> None:
        """Apply the rules again if they, or their inputs, have changed. Raises NoNetwork."""
        if self._rules() != self._applied:
            log.info("firewall.changed", table=self.table)
        elif self._found() != self._listed:
            log.warning("firewall.restored", table=self.table)
        else:
            return
        self.apply()

    def _found(self) -> str:
        """Return the kernel's rules, without counters; "": none."""
        try:
            return _nft("-s", "-t", "list", "table", "inet", self.table)
        except NoNetwork:
            return ""


def _remove_table(name: str) -> None:
    """Remove a table, if it exists."""
    try:
        _nft("-f", "-", stdin=f"table inet {name}\ndelete table inet {name}\n")
    except NoNetwork as error:
        log.warning("firewall.not_removed", reason=str(error))


def _nft(*arguments: str, stdin: str = "") -> str:
    return _run("nft", *arguments, stdin=stdin)


def _run(name: str, *arguments: str, stdin: str = "") -> str:
    program = shutil.which(name, path="/usr/sbin:/sbin:/usr/local/sbin:/usr/bin:/bin")
    if program is None:
        raise NoNetwork(f"there is no program {name}: install it (package nftables for nft)")
    try:
        done = subprocess.run(
            [program, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=_PROGRAM_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoNetwork(f"{name}: {error}") from error
    if done.returncode:
        words = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        raise NoNetwork(f"{name}: {words[0]}")
    return done.stdout


class SessionNetwork:
    """Creates namespaces of sessions at this agent's bridge. Blocking; thread-safe.

    Args:
        data: the agent's data folder.
        subnet: the addresses.
        mtu: in bytes, of the machine's uplinks.
        nameservers: resolvers set by an administrator.
    """

    def __init__(
        self, data: Path, subnet: ipaddress.IPv4Network, *, mtu: int, nameservers: Sequence[str]
    ) -> None:
        self.bridge = name_of(data)
        self.subnet = subnet
        self._mtu = mtu
        self._gateway = subnet[1]
        self._next = random.randrange(subnet.num_addresses)  # noqa: S311 - an order, no secret
        self._turn = threading.Lock()
        self._pool = NamespacePool(self._made)
        self._files = WrittenFiles(data / "network", lambda: machines_names(nameservers))

    def create(self) -> None:
        """Create the bridge, if missing. Raises OSError."""
        with Netlink() as host:
            with suppress(FileExistsError):
                host.add_bridge(self.bridge)
            host.keep_without_address(self.bridge)
            own = ipaddress.IPv4Interface((self._gateway, self.subnet.prefixlen))
            host.add_address(host.index_of(self.bridge), own)
            host.set_up(self.bridge)
        _set(_forwards(self.bridge), "1")
        _set(f"ipv6/conf/{self.bridge}/disable_ipv6", "1")

    def remove(self) -> None:
        """Remove the bridge. Raises OSError."""
        with Netlink() as host:
            host.remove_link(self.bridge)

    def files(self) -> Mapping[str, Path]:
        """Return replacements of files in /etc, from the machine's current ones. Raises OSError."""
        return self._files.places()

    def content(self) -> None:
        """None: a shim gets a namespace."""
        return

    def ready(self) -> int | None:
        """Return a descriptor of a namespace created ahead, at once; None: there is none."""
        return self._pool.take()

    def namespace(self) -> int:
        """Return a descriptor of a new namespace with an address of its own. Raises OSError."""
        ready = self._pool.take()
        return self._make() if ready is None else ready

    def close(self) -> None:
        """Close the ready namespaces, and keep none from now on."""
        self._pool.close()

    def _make(self) -> int:
        def make() -> int:
            with closing(self._made()) as made:
                return next(made)

        return in_thread_that_ends(make)

    def _made(self) -> Generator[int]:
        """Yield new namespaces; the calling thread ends in the last of them."""
        bridge = socket.if_nametoindex(self.bridge)
        with Netlink() as host:
            while True:
                yield enter_new_namespace(
                    lambda descriptor: self._furnish(host, bridge, descriptor)
                )

    def _furnish(self, host: Netlink, bridge: int, descriptor: int) -> None:
        # Before an interface exists. With one, the kernel takes the lock of all interfaces of the machine
        # for this, and retries in a loop instead of waiting: for milliseconds at a time, while
        # others create networks or the kernel ends those of sessions.
        _set("ipv6/conf/default/disable_ipv6", "1")
        for _ in range(self.subnet.num_addresses):
            number = self._take()
            name = f"{self.bridge[4:]}.{number}"
            try:
                host.add_pair(name, _INTERFACE, descriptor, mtu=self._mtu, bridge=bridge)
                break
            except FileExistsError:
                continue  # a session has that address
        else:
            raise OSError(f"all addresses of {self.subnet} are in use")
        host.isolate(name)
        host.keep_without_address(name)
        host.set_up(name)
        _set("ipv4/ping_group_range", "0\t2147483647")
        with Netlink() as own:
            own.set_up("lo")
            index = socket.if_nametoindex(_INTERFACE)  # a tenth of the cost by netlink
            own.add_address(index, ipaddress.IPv4Interface(self.subnet[number]))
            own.set_up(_INTERFACE)
            own.add_default_route(index, self._gateway)

    def _take(self) -> int:
        """Return the next address: not the network's, the machine's, nor one of the last four."""
        with self._turn:
            self._next = self._next % (self.subnet.num_addresses - 6) + 1
            return self._next + 1


def _set(name: str, value: str) -> None:
    """Set a value of /proc/sys/net in the calling thread's namespace, if it exists."""
    try:
        descriptor = os.open(f"/proc/sys/net/{name}", os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


class Networks(Protocol):
    """Creates networks of sessions. Blocking; thread-safe."""

    def files(self) -> Mapping[str, Path]:
        """Return replacements of files in /etc. Raises OSError."""

    def content(self) -> PastaNetwork | None:
        """Return a shim's description of a network to create. Raises OSError."""

    def ready(self) -> int | None:
        """Return a descriptor of a namespace created ahead, at once; None: there is none."""

    def namespace(self) -> int | None:
        """Return a descriptor of a new namespace; None: the shim creates it. Raises OSError."""

    def close(self) -> None:
        """Close ready namespaces, and keep none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFacts:
    """Results: the creator of sessions' networks (None: they use the machine's), and why there is none.

    `firewall` is set if metadata services are closed to some sessions at least; `open_reason` is
    why they are not closed to all.
    """

    network: Networks | None = None
    firewall: Firewall | None = None
    reason: str = ""
    open_reason: str = ""

    def remove(self) -> None:
        """Remove all, also of earlier agents, once no session needs it."""
        if self.firewall is not None:
            with _alone():
                _remove(self.firewall.table)


def name_of(data: Path) -> str:
    """Return the name of the bridge and the table of a data folder's agent."""
    return "nsml" + hashlib.sha256(str(data.resolve()).encode()).hexdigest()[:6]


def machines_names(wanted: Sequence[str]) -> dict[str, str]:
    """Return files for name resolution in a session, path to text, from the machine's. Raises NoNetwork."""
    texts = [text_of(path) for path in RESOLVED_BY]
    return {
        "/etc/resolv.conf": resolv_conf(texts, wanted),
        "/etc/hosts": hosts_file(text_of(_HOSTS), socket.gethostname()),
    }


def write_files(folder: Path, names: Mapping[str, str]) -> Mapping[str, Path]:
    """Write these texts to files in the folder, named as the path's last part; return the places. Raises OSError."""
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    places = {}
    for path, text in names.items():
        place = places[path] = folder / Path(path).name
        if text_of(place) != text:
            write_atomically(place, text.encode())
            place.chmod(0o644)
    return places


class WrittenFiles:
    """Replacements of the machine's files in /etc: rewritten after changes, not at each start.

    Args:
        folder: contains them.
        names: returns their current texts, path to text; may raise NoNetwork.
    """

    def __init__(self, folder: Path, names: Callable[[], Mapping[str, str]]) -> None:
        self._folder = folder
        self._names = names
        self._turn = threading.Lock()
        self._places: Mapping[str, Path] = {}
        self._seen: object = None

    def places(self) -> Mapping[str, Path]:
        """Return path in /etc to file. Raises OSError."""
        with self._turn:
            seen = self._look()
            if seen is None or seen != self._seen:
                try:
                    self._places = write_files(self._folder, self._names())
                except NoNetwork as error:
                    raise OSError(errno.ENETUNREACH, str(error)) from error
                # a change while reading counts as a change the next time, too
                is_same = seen is not None and seen[0] == self._look_at_machine()
                self._seen = self._look() if is_same else None
            return self._places

    def _look(self) -> tuple[object, object] | None:
        """Return a stamp of the machine's files and of those here; None: a change may not be visible yet."""
        machine, own = self._look_at_machine(), _stamps(self._places.values())
        return None if machine is None else (machine, own)

    @staticmethod
    def _look_at_machine() -> object:
        now = time.time_ns()
        stamps = _stamps([*RESOLVED_BY, _HOSTS])
        if any(stamp is not None and now - stamp[0] < _SHOWN_AFTER_NS for stamp in stamps):
            return None
        return socket.gethostname(), stamps


def _stamps(paths: Iterable[Path]) -> list[tuple[int, int, int, int] | None]:
    """Return change times, inode and size of each file; None: there is no file."""
    stamps: list[tuple[int, int, int, int] | None] = []
    for path in paths:
        try:
            found = path.stat()
            stamps.append((found.st_ctime_ns, found.st_mtime_ns, found.st_ino, found.st_size))
        except OSError:
            stamps.append(None)
    return stamps


def text_of(path: Path) -> str:
    """Return the text of a file; "" if unreadable."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def probe_network(
    data: Path,
    *,
    rules: NetworkRules,
    subnet: str,
    nameservers: Sequence[str],
    is_wanted: bool,
    engines: Callable[[], Sequence[str]] = tuple,
) -> NetworkFacts:
    """Create the rules and, if `is_wanted`, the bridge, and try a connection; blocks for some 50 ms.

    The caller is root. Failed parts are removed again; a bridge with sessions stays, with its rules.
    `engines` returns the current interfaces of an engine's containers with sessions and builds.
    """
    name = name_of(data)
    firewall = Firewall(name, lambda: _rules_now(name, rules, engines()))
    with _alone():
        try:
            tidy()
            with suppress(OSError):
                (_STATE / name).write_text(str(data.resolve()), encoding="utf-8")
            firewall.apply()
        except (NoNetwork, OSError) as error:
            return NetworkFacts(reason=str(error), open_reason=str(error))
        network, reason = None, ""
        if is_wanted:
            try:
                machines_names(nameservers)
                network = _made_network(data, subnet, nameservers, firewall)
            except (NoNetwork, OSError) as error:
                reason = str(error)
                firewall.apply()
    open_reason = ""
    if rules.uids is None:
        open_reason = "sessions with the machine's network have no ids of their own to tell them by"
    return NetworkFacts(network=network, firewall=firewall, reason=reason, open_reason=open_reason)


def _rules_now(name: str, rules: NetworkRules, engines: Sequence[str]) -> str:
    """Return the table for the bridge of that name, if it exists: with sessions of an earlier agent."""
    routes = text_of(_ROUTES)
    around = HostNetworks(
        engines=engines,
        lent=_lent(name),
        connections=connections_of_all(text_of(_CONNECTIONS)),
    )
    subnet = subnet_of(name, routes)
    if subnet is not None:
        ways_out = [*uplinks(routes), _trial_link(name)]
        around = replace(around, bridges=[name], subnet=str(subnet), ways_out=ways_out)
    return ruleset(name, rules, around)


def _lent(name: str) -> list[str]:
    """Return the interfaces that forward only for sessions of that name; none if all interfaces forward."""
    if _value(_FORWARDS_ALL) == "1":
        return []
    return sorted(note.parent.name for note in _STATE.glob(f"lent/*/{name}"))


def _lend(name: str, links: Sequence[str]) -> None:
    """Note which of these interfaces did not forward before."""
    for link in links:
        place = _STATE / "lent" / link
        if place.exists() or _value(_forwards(link)) == "0":
            with suppress(OSError):
                place.mkdir(parents=True, exist_ok=True)
                (place / name).touch()


def _give_back(name: str) -> None:
    """Stop forwarding on interfaces that forwarded for sessions of that name, unless needed otherwise."""
    for note in _STATE.glob(f"lent/*/{name}"):
        note.unlink(missing_ok=True)
        if any(note.parent.iterdir()):
            continue  # for another agent
        note.parent.rmdir()
        if _value(_FORWARDS_ALL) == "0":
            _set(_forwards(note.parent.name), "0")


def _forwards(link: str) -> str:
    # not net.ipv4.ip_forward: that would make the machine a router for all its interfaces
    return f"ipv4/conf/{link}/forwarding"


def _value(name: str) -> str:
    """Return a value of /proc/sys/net in the calling thread's namespace, or ""."""
    return text_of(Path("/proc/sys/net", name)).strip()


def _trial_link(name: str) -> str:
    """Return the interface for testing the agent's bridge of that name."""
    return f"t{name[4:]}"


@contextmanager
def _alone() -> Iterator[None]:
    """Exclude other agents of this machine meanwhile, if a lock is possible."""
    with ExitStack() as stack:
        with suppress(OSError):
            _STATE.mkdir(mode=0o755, exist_ok=True)
            lock = stack.enter_context((_STATE / "lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def tidy() -> None:
    """Remove the bridges and tables of agents without a data folder. The caller is root."""
    for note in _STATE.glob("nsml*"):
        if not Path(text_of(note)).exists():
            _remove(note.name)


def _remove(name: str) -> None:
    """Remove all that agents of that name created."""
    with Netlink() as host:
        host.remove_link(name)
    _let_through(name, is_let=False)
    _give_back(name)
    _remove_table(name)
    with suppress(OSError):
        (_STATE / name).unlink()


def _made_network(
    data: Path, subnet: str, nameservers: Sequence[str], firewall: Firewall
) -> SessionNetwork:
    """Create and test the bridge with its rules. Raises NoNetwork or OSError, and leaves no bridge without sessions."""
    name = name_of(data)
    routes = text_of(_ROUTES)
    links = uplinks(routes)
    with Netlink() as host:
        mtus = [host.link(link).mtu for link in links]
    had = subnet_of(name, routes)
    network = SessionNetwork(
        data,
        had or free_subnet(subnet, routes),
        mtu=min(mtus, default=1500),
        nameservers=nameservers,
    )
    try:
        network.create()
        _lend(name, links)
        firewall.apply()
        for link in links:
            if _value(_forwards(link)) != "1":
                _set(_forwards(link), "1")
        try:
            _try_connection(network, name)
        except NoNetwork:
            if not _let_through(name, is_let=True):
                raise
            _try_connection(network, name)
    except BaseException:
        if had is None:
            network.remove()
            _give_back(name)
        raise
    return network


def _let_through(bridge: str, *, is_let: bool) -> bool:
    """Let sessions pass in Docker's chain for others, where Docker drops forwarded traffic, or undo that."""
    rules = (
        ("-i", bridge, "-j", "ACCEPT"),
        ("-o", bridge, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT"),
    )
    change = "-I" if is_let else "-D"
    try:
        for rule in rules:
            _run("iptables", "-w", change, _DOCKERS_CHAIN, *rule)
    except NoNetwork:
        return False  # no Docker, or no such rule
    return True


def _try_connection(network: SessionNetwork, name: str) -> None:
    """Connect from a session's namespace to another one, through the machine as if that was outside.

    Raises:
        NoNetwork: the connection is blocked.
    """
    near, far = network.subnet[-3], network.subnet[-2]
    link = _trial_link(name)
    with Netlink() as host:
        host.remove_link(link)

        def furnish(descriptor: int) -> None:
            host.add_pair(link, _INTERFACE, descriptor, mtu=1500)
            host.keep_without_address(link)
            host.add_address(host.index_of(link), ipaddress.IPv4Interface((near, 30)))
            host.set_up(link)
            with Netlink() as own:
                own.add_address(own.index_of(_INTERFACE), ipaddress.IPv4Interface((far, 30)))
                own.set_up(_INTERFACE)

        try:
            with (
                _closed(new_namespace(furnish)) as outside,
                _closed(network._make()) as session,
            ):
                _set(_forwards(link), "1")
                with inside(outside, lambda: socket.create_server((str(far), 0))) as server:
                    address = server.getsockname()
                    inside(
                        session, lambda: socket.create_connection(address, _TRIAL_WITHIN_S)
                    ).close()
        except OSError as error:
            raise NoNetwork(
                f"sessions would reach nothing through this machine ({error.strerror or error}):"
                f" let its firewall forward what comes from interface {name}"
                f" (iptables -I FORWARD -i {name} -j ACCEPT; iptables -I FORWARD -o {name} -j ACCEPT)"
            ) from error
        finally:
            host.remove_link(link)


@contextmanager
def _closed(descriptor: int) -> Iterator[int]:
    """Yield the descriptor, closed at the end."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)
