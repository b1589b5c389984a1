"""What sessions reach of networks, as texts and numbers: rules for nftables, addresses, files of names. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

_PREFIX = 20
"""Of the part of `session_subnet` that one agent takes: 4,094 addresses."""
_LINK_LOCAL = "169.254.0.0/16"
_NAMES = "meta l4proto { tcp, udp } th dport 53 accept"
"""Resolvers of clouds have the addresses of their metadata services, or are on this machine."""
_REFUSED = "reject with icmpx admin-prohibited"


class NoNetwork(Exception):
    """Something of this cannot be had on this machine; the message says why, and what to do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRules:
    """What sessions may reach.

    Attributes:
        uids: first and last id of the accounts that sessions run as; None: they have none.
        metadata: addresses and ranges that no session reaches but for names (port 53).
        ports: TCP ports of this machine that sessions with a network of their own may reach.
        connections: how many of its own such a session may have open: the machine's table of them is everybody's.
    """

    uids: tuple[int, int] | None = None
    metadata: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    connections: int = 8192


def ruleset(
    table: str,
    rules: NetworkRules,
    *,
    bridges: Sequence[str] = (),
    ways_out: Sequence[str] = (),
    subnet: str = "",
) -> str:
    """The table for `nft -f`, which replaces one that is there.

    Args:
        table: its name.
        rules: what is allowed.
        bridges: interfaces behind which sessions are.
        ways_out: interfaces that lead out of the machine, though they be bridges or pairs.
        subnet: their addresses, where this table is to translate them; "": somebody else does.
    """
    lines = [f"table inet {table}", f"delete table inet {table}", f"table inet {table} {{"]
    behind = _names(bridges)
    sent = []
    if bridges:
        # a program with the machine's network must not reach a session's either
        sent += [
            f"oifname {behind} ct state established,related accept",
            f"oifname {behind} {_REFUSED}",
        ]
    if rules.uids is not None:
        first, last = rules.uids
        who = f"meta skuid {first}-{last} "
        sent += [_NAMES, *(who + one for one in _refusals(rules.metadata))]
    if sent:
        lines += _chain("output", "filter", "filter", sent)
    if bridges:
        counted = f"{{ ip saddr ct count over {rules.connections} }}"
        bounded = f"ct state new add @open {counted} {_REFUSED}"
        passing = [
            f"oifname {behind} ct state established,related accept",
            f"oifname {behind} drop",
            f"iifname != {behind} accept",
            bounded,
            _NAMES,
            *_refusals([_LINK_LOCAL, *rules.metadata]),
            # ports of this machine that lead into containers or machines on it
            f"ct status dnat {_REFUSED}",
            # and those themselves
            *([f"oifname {_names(ways_out)} accept"] if ways_out else []),
            f'meta oifkind {{ "bridge", "veth" }} {_REFUSED}',
        ]
        lines += ["set open {", "type ipv4_addr; flags dynamic; size 65535;", "}"]
        ports = ", ".join(map(str, rules.ports))
        received = [
            f"iifname != {behind} accept",
            "ct state established,related accept",
            bounded,
            _NAMES,
            *([f"tcp dport {{ {ports} }} accept"] if ports else []),
            "icmp type echo-request accept",
            _REFUSED,
        ]
        lines += _chain("forward", "filter", "filter", passing)
        lines += _chain("input", "filter", "filter", received)
    if subnet:
        translated = [f"ip saddr {subnet} oifname != {behind} masquerade"]
        lines += _chain("postrouting", "nat", "srcnat", translated)
    return "\n".join([*lines, "}", ""])


def _names(interfaces: Sequence[str]) -> str:
    return "{ " + ", ".join(f'"{name}"' for name in interfaces) + " }"


def _refusals(addresses: Sequence[str]) -> list[str]:
    """Rules that refuse what is for these addresses and ranges."""
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
    """Those of one version, without any that is within another: a set of nftables takes none."""
    chosen: list[Any] = [one for one in networks if one.version == version]
    return ipaddress.collapse_addresses(chosen)


def _chain(hook: str, kind: str, priority: str, rules: Iterable[str]) -> list[str]:
    head = f"type {kind} hook {hook} priority {priority}; policy accept;"
    return [f"chain {hook} {{", head, *rules, "}"]


def subnet_of(bridge: str, routes: str) -> ipaddress.IPv4Network | None:
    """The addresses behind a bridge of ours; None where it has none. `routes` as for `free_subnet`."""
    for interface, network in _routes(routes):
        if interface == bridge and network.prefixlen == _PREFIX:
            return network
    return None


def free_subnet(within: str, routes: str) -> ipaddress.IPv4Network:
    """A part of a range that this machine has no route to.

    Args:
        within: the range.
        routes: the text of /proc/net/route.

    Raises:
        NoNetwork: all is in use.
    """
    taken = [network for _, network in _routes(routes) if network.prefixlen]
    whole = ipaddress.IPv4Network(within)
    for part in whole.subnets(new_prefix=max(_PREFIX, whole.prefixlen)):
        if not any(part.overlaps(one) for one in taken):
            return part
    raise NoNetwork(f"session_subnet {within} is all in use on this machine: choose another range")


def _routes(text: str) -> Iterable[tuple[str, ipaddress.IPv4Network]]:
    """Interface and destination of each route."""
    for line in text.splitlines()[1:]:
        interface, destination, _, _, _, _, _, mask = line.split()[:8]
        yield interface, ipaddress.IPv4Network(f"{_address(destination)}/{_address(mask)}")


def _address(word: str) -> ipaddress.IPv4Address:
    """A number of /proc/net/route."""
    return ipaddress.IPv4Address(bytes.fromhex(word)[::-1])


def uplinks(routes: str) -> list[str]:
    """The interfaces that lead out of the machine, by the text of /proc/net/route."""
    found = (interface for interface, network in _routes(routes) if not network.prefixlen)
    return list(dict.fromkeys(found))


def resolv_conf(texts: Sequence[str], wanted: Sequence[str]) -> str:
    """A session's resolv.conf: of the first text with a resolver that is not on the machine's loopback.

    Args:
        texts: files of that kind, the machine's own first.
        wanted: resolvers that an administrator set; they take the place of others.

    Raises:
        NoNetwork: there is none.
    """
    others = [
        line for line in texts[0].splitlines() if line.split()[:1] not in ([], ["nameserver"])
    ]
    for servers in (list(wanted), *map(_nameservers, texts)):
        reached = [server for server in servers if _is_reached(server)]
        if reached:
            return "\n".join([*(f"nameserver {server}" for server in reached), *others, ""])
    if not any(map(_nameservers, texts)):
        return texts[0]  # a machine that resolves no names by servers
    raise NoNetwork(
        "sessions would reach no resolver: /etc/resolv.conf names none but on this machine's loopback,"
        " or by IPv6: set session_nameservers"
    )


def _nameservers(text: str) -> list[str]:
    words = (line.split() for line in text.splitlines())
    return [line[1] for line in words if len(line) > 1 and line[0] == "nameserver"]


def _is_reached(server: str) -> bool:
    """Whether it is an IPv4 address that is not on the machine's loopback: sessions have no IPv6."""
    try:
        address = ipaddress.ip_address(server)
    except ValueError:
        return False
    return address.version == 4 and not address.is_loopback


def hosts_file(text: str, name: str) -> str:
    """A session's /etc/hosts: the machine's, in which the machine's name is the session's own loopback."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    lines.append(f"127.0.1.1 {name}")
    own = {"localhost", name, name.partition(".")[0]}
    for line in text.splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        kept = [one for one in names if one not in own]
        if kept and not address.startswith("127.") and address != "::1":
            lines.append(" ".join([address, *kept]))
    return "\n".join([*lines, ""])
