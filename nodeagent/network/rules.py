"""Network access of sessions, as texts and numbers: nftables rules, addresses, files for name resolution. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

_PREFIX = 20
"""Prefix length of an agent's part of `session_subnet`: 4,094 addresses."""
_LINK_LOCAL = "169.254.0.0/16"
_NAMES = "meta l4proto { tcp, udp } th dport 53 accept"
"""Resolvers of clouds share the addresses of their metadata services, or are on this machine."""
_REFUSED = "reject with icmpx admin-prohibited"
_OURS = "nsml*"
"""Bridges of all agents of a machine."""
_CONNECTIONS_OF_ALL = 65_536
"""Most connections of all sessions of a node: kernels scan their list for each new one, which
takes 0.1 ms at this number (Linux 6.18; before 5.19 more)."""


class NoNetwork(Exception):
    """A network is not possible on this machine; the message gives the reason, and advice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRules:
    """Network access of sessions.

    Attributes:
        uids: first and last id of the accounts of sessions; None: they have none.
        metadata: addresses and ranges closed to sessions, except for name resolution (port 53).
        ports: TCP ports of this machine open to sessions with a network of their own.
        connections: most open connections of such a session, and of a container: the machine's table of
            them is shared by all.
    """

    uids: tuple[int, int] | None = None
    metadata: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    connections: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNetworks:
    """The machine's networks for which rules are made.

    Attributes:
        bridges: interfaces of sessions.
        subnet: their addresses, if this table is to translate them; "": something else does.
        ways_out: interfaces that lead out of the machine, even if they are bridges or pairs.
        engines: interfaces of an engine's containers with sessions and builds.
        lent: interfaces that forward only for sessions: other traffic from them is dropped.
        connections: of all sessions together.
    """

    bridges: Sequence[str] = ()
    subnet: str = ""
    ways_out: Sequence[str] = ()
    engines: Sequence[str] = ()
    lent: Sequence[str] = ()
    connections: int = _CONNECTIONS_OF_ALL


def connections_of_all(most: str) -> int:
    """Return the connection limit of all sessions of a machine, by the text of nf_conntrack_max.

    Half of the machine's own limit, to leave the rest to others.
    """
    return min(int(most or 65_536) // 2, _CONNECTIONS_OF_ALL)


def ruleset(table: str, rules: NetworkRules, around: HostNetworks | None = None) -> str:
    """Return the table's text for `nft -f`, which replaces an existing one."""
    around = around or HostNetworks()
    lines = [f"table inet {table}", f"delete table inet {table}", f"table inet {table} {{"]
    behind = _names(around.bridges)
    if around.bridges or around.engines:
        lines += _bounds(rules, around)
    if around.engines:
        lines += _containers(rules)
    to_engines = f"iifname {_names(around.engines)} jump containers"
    forward = [
        # nor may a program with the machine's network reach a session's
        *([f"oifname {behind} ct state established,related accept"] if around.bridges else []),
        *([f"oifname {behind} drop"] if around.bridges else []),
        *_lent(around.lent),
        *([to_engines] if around.engines else []),
        *(_passing(rules, around) if around.bridges else []),
    ]
    received = [
        *([to_engines] if around.engines else []),
        *(_received(rules, behind) if around.bridges else []),
    ]
    lines += _chain("output", "filter", "filter", _sent(rules, behind if around.bridges else ""))
    lines += _chain("forward", "filter", "filter", forward)
    lines += _chain("input", "filter", "filter", received)
    if around.subnet:
        translated = [f"ip saddr {around.subnet} oifname != {behind} masquerade"]
        lines += _chain("postrouting", "nat", "srcnat", translated)
    return "\n".join([*lines, "}", ""])


def _bounds(rules: NetworkRules, around: HostNetworks) -> list[str]:
    """Return limits of connections, by source and in total, as a chain to jump to."""
    bounds = [
        ("open", "ipv4_addr", 65_535, "ip saddr", rules.connections),
        ("open6", "ipv6_addr", 65_535, "ip6 saddr", rules.connections),
        # IPv4 and IPv6 each
        ("total", "nf_proto", 2, "meta nfproto", around.connections),
    ]
    lines = []
    for name, kind, size, _, _ in bounds:
        lines += [f"set {name} {{", f"type {kind}; flags dynamic; size {size};", "}"]
    # a flow without an answer stays new for long, and is counted once
    counted = [
        f"ct state new ct status & confirmed == 0 add @{name} {{ {key} ct count over {most} }} {_REFUSED}"
        for name, _, _, key, most in bounds
    ]
    return [*lines, "chain bounds {", *counted, "}"]


def _containers(rules: NetworkRules) -> list[str]:
    """Return rules for containers: engines redirect some addresses here before rules apply."""
    refusals = _refusals(rules.metadata)
    first = [f"ct original {one}" for one in refusals]
    return ["chain containers {", "jump bounds", _NAMES, *refusals, *first, "}"]


def _sent(rules: NetworkRules, behind: str) -> list[str]:
    """Return rules for the machine's own programs: who may not reach sessions, and what sessions may not reach."""
    sent = []
    if behind:
        sent += [
            f"oifname {behind} ct state established,related accept",
            f"oifname {behind} {_REFUSED}",
        ]
    if rules.uids is not None:
        first, last = rules.uids
        who = f"meta skuid {first}-{last} "
        sent += [_NAMES, *(who + one for one in _refusals(rules.metadata))]
    return sent


def _lent(lent: Sequence[str]) -> list[str]:
    """Keep the machine from routing for others; traffic redirected by others' own rules is theirs."""
    rules = []
    for link in lent:
        # traffic between a bridge's ports may pass here, too
        rules.append(f'iifname "{link}" oifname "{link}" meta oifkind "bridge" accept')
        rules.append(
            f'iifname "{link}" oifname != "{_OURS}" meta nfproto ipv4 ct state new ct status ! dnat drop'
        )
    return rules


def _passing(rules: NetworkRules, around: HostNetworks) -> list[str]:
    ways_out = [f"oifname {_names(around.ways_out)} accept"] if around.ways_out else []
    return [
        f"iifname != {_names(around.bridges)} accept",
        "jump bounds",
        _NAMES,
        *_refusals([_LINK_LOCAL, *rules.metadata]),
        # ports of this machine that lead to containers or machines on it
        f"ct status dnat {_REFUSED}",
        # and those themselves
        *ways_out,
        f'meta oifkind {{ "bridge", "veth" }} {_REFUSED}',
    ]


def _received(rules: NetworkRules, behind: str) -> list[str]:
    ports = ", ".join(map(str, rules.ports))
    return [
        f"iifname != {behind} accept",
        "ct state established,related accept",
        "jump bounds",
        _NAMES,
        *([f"tcp dport {{ {ports} }} accept"] if ports else []),
        "icmp type echo-request accept",
        _REFUSED,
    ]


def _names(interfaces: Sequence[str]) -> str:
    return "{ " + ", ".join(f'"{name}"' for name in interfaces) + " }"


def _refusals(addresses: Sequence[str]) -> list[str]:
    """Return rules that refuse these addresses and ranges."""
    rules = []
    for family, version in (("ip", 4), ("ip6", 6)):
        networks = {ipaddress.ip_network(one) for one in addresses}
        own = sorted(str(one) for one in _merged(networks, version))
        if own:
            rules.append(f"{family} daddr {{ {', '.join(own)} }} {_REFUSED}")
    return rules


def _merged(
    networks: Iterable[ipaddress.IPv4Network | ipaddress.IPv6Network], version: int
) -> Iterable[object]:
    """Return those of one version, merged: a set of nftables allows no overlaps."""
    chosen: list[Any] = [one for one in networks if one.version == version]
    return ipaddress.collapse_addresses(chosen)


def _chain(hook: str, kind: str, priority: str, rules: Sequence[str]) -> list[str]:
    """Return a base chain; nothing without rules."""
    if not rules:
        return []
    head = f"type {kind} hook {hook} priority {priority}; policy accept;"
    return [f"chain {hook} {{", head, *rules, "}"]


def subnet_of(bridge: str, routes: str) -> ipaddress.IPv4Network | None:
    """Return the addresses of one of our bridges, or None. `routes` as for `free_subnet`."""
    for interface, network in _routes(routes):
        if interface == bridge and network.prefixlen == _PREFIX:
            return network
    return None


def free_subnet(within: str, routes: str) -> ipaddress.IPv4Network:
    """Return a part of a range that this machine has no route to.

    Args:
        within: the range.
        routes: the text of /proc/net/route.

    Raises:
        NoNetwork: the whole range is in use.
    """
    taken = [network for _, network in _routes(routes) if network.prefixlen]
    whole = ipaddress.IPv4Network(within)
    for part in whole.subnets(new_prefix=max(_PREFIX, whole.prefixlen)):
        if not any(part.overlaps(one) for one in taken):
            return part
    raise NoNetwork(f"session_subnet {within} is all in use on this machine: choose another range")


def networks_at(interfaces: Collection[str], routes: str) -> list[ipaddress.IPv4Network]:
    """Return the networks of these interfaces. `routes` as for `free_subnet`."""
    return [
        network for name, network in _routes(routes) if name in interfaces and network.prefixlen
    ]


def local_addresses(tries: str) -> list[ipaddress.IPv4Network]:
    """Return the machine's own addresses without its loopback's, from the text of /proc/net/fib_trie."""
    found, address = set(), ""
    for line in tries.splitlines():
        words = line.split()
        if words[:1] == ["|--"]:
            address = words[1]
        elif words[:3] == ["/32", "host", "LOCAL"]:
            found.add(ipaddress.IPv4Network(address))
    return sorted(one for one in found if not one.is_loopback)


def is_within(address: str, networks: Iterable[ipaddress.IPv4Network]) -> bool:
    """Whether an IPv4 address is in one of these networks."""
    return any(ipaddress.IPv4Address(address) in network for network in networks)


def _routes(text: str) -> Iterable[tuple[str, ipaddress.IPv4Network]]:
    """Yield interface and destination of each route."""
    for line in text.splitlines()[1:]:
        interface, destination, _, _, _, _, _, mask = line.split()[:8]
        yield interface, ipaddress.IPv4Network(f"{_address(destination)}/{_address(mask)}")


def _address(word: str) -> ipaddress.IPv4Address:
    """Parse a number of /proc/net/route."""
    return ipaddress.IPv4Address(bytes.fromhex(word)[::-1])


def uplinks(routes: str) -> list[str]:
    """Return the interfaces that lead out of the machine, from the text of /proc/net/route."""
    found = (interface for interface, network in _routes(routes) if not network.prefixlen)
    return list(dict.fromkeys(found))


def resolv_conf(texts: Sequence[str], wanted: Sequence[str]) -> str:
    """Return a session's resolv.conf: from the first text with a resolver outside the machine's loopback.

    Args:
        texts: files of that kind, the machine's own first.
        wanted: resolvers set by an administrator, in place of others.

    Raises:
        NoNetwork: there is none.
    """
    others = [
        line for line in texts[0].splitlines() if line.split()[:1] not in ([], ["nameserver"])
    ]
    for servers in (list(wanted), *map(nameservers_of, texts)):
        reached = [server for server in servers if _is_reached(server)]
        if reached:
            return "\n".join([*(f"nameserver {server}" for server in reached), *others, ""])
    if not any(map(nameservers_of, texts)):
        return texts[0]  # a machine that resolves no names by servers
    raise NoNetwork(
        "sessions would reach no resolver: /etc/resolv.conf names none but on this machine's loopback,"
        " or by IPv6: set session_nameservers"
    )


def nameservers_of(text: str) -> list[str]:
    """Return the resolvers in a resolv.conf."""
    words = (line.split() for line in text.splitlines())
    return [line[1] for line in words if len(line) > 1 and line[0] == "nameserver"]


def _is_reached(server: str) -> bool:
    """Whether it is an IPv4 address outside the machine's loopback: sessions have no IPv6."""
    return is_ipv4(server) and not ipaddress.IPv4Address(server).is_loopback


def is_ipv4(word: str) -> bool:
    """Whether it is an IPv4 address."""
    try:
        ipaddress.IPv4Address(word)
    except ValueError:
        return False
    return True


def hosts_file(text: str, name: str) -> str:
    """Return a session's /etc/hosts: the machine's, but with the machine's name at the session's own loopback."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    lines.append(f"127.0.1.1 {name}")
    own = {"localhost", name, name.partition(".")[0]}
    for line in text.splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        kept = [one for one in names if one not in own]
        if kept and not address.startswith("127.") and address != "::1":
            lines.append(" ".join([address, *kept]))
    return "\n".join([*lines, ""])
