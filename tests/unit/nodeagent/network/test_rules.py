"""What sessions reach, as texts: rules, subnets, and files of names."""

import ipaddress
import shutil
import subprocess

import pytest

from nodeagent.config import METADATA_ADDRESSES
from nodeagent.network.rules import (
    HostNetworks,
    NetworkRules,
    NoNetwork,
    connections_of_all,
    free_subnet,
    hosts_file,
    local_addresses,
    resolv_conf,
    ruleset,
    subnet_of,
    uplinks,
)

RULES = NetworkRules(uids=(100, 199), metadata=METADATA_ADDRESSES, ports=(8080, 9000))


def lines(text: str, chain: str) -> list[str]:
    return text.split(f"chain {chain} {{\n", 1)[1].split("\n}\n", 1)[0].splitlines()[1:]


def test_a_program_with_the_machines_network_reaches_no_metadata_service_and_no_session() -> None:
    rules = lines(
        ruleset("t", RULES, HostNetworks(bridges=["b"], subnet="198.18.0.0/20")), "output"
    )
    refused = [line for line in rules if "meta skuid 100-199 ip" in line]
    for address in METADATA_ADDRESSES:
        assert any(address in line and line.endswith("admin-prohibited") for line in refused)
    assert rules[1] == 'oifname { "b" } reject with icmpx admin-prohibited'


def test_a_session_reaches_of_the_machine_what_its_administrator_opened() -> None:
    rules = lines(ruleset("t", RULES, HostNetworks(bridges=["b"])), "input")
    assert rules[0] == 'iifname != { "b" } accept'
    assert "tcp dport { 8080, 9000 } accept" in rules
    assert rules[-1] == "reject with icmpx admin-prohibited"


def test_without_bridges_and_ids_there_are_no_chains() -> None:
    assert "chain" not in ruleset("t", NetworkRules(metadata=METADATA_ADDRESSES))


def test_containers_are_asked_by_what_they_asked_for() -> None:
    text = ruleset("t", RULES, HostNetworks(engines=["br-x"]))
    for hook in ("forward", "input"):
        assert lines(text, hook) == ['iifname { "br-x" } jump containers']
    rules = text.split("chain containers {\n", 1)[1].split("\n}\n", 1)[0].splitlines()
    assert rules[0] == "jump bounds"
    for address in METADATA_ADDRESSES:
        about = [rule for rule in rules if address in rule]
        assert [rule.startswith("ct original ") for rule in about] == [False, True]
        assert all(rule.endswith("admin-prohibited") for rule in about)


def test_sessions_leave_the_machine_half_of_its_connections() -> None:
    bounds = [connections_of_all(text) for text in ("32768\n", "262144\n", "")]
    assert bounds == [16_384, 65_536, 32_768]
    text = ruleset("t", RULES, HostNetworks(engines=["br-x"], connections=16_384))
    assert "add @total { meta nfproto ct count over 16384 }" in text


def test_an_interface_that_forwards_for_sessions_forwards_for_nobody_else() -> None:
    assert lines(ruleset("t", RULES, HostNetworks(lent=["eth0"])), "forward") == [
        'iifname "eth0" oifname "eth0" meta oifkind "bridge" accept',
        'iifname "eth0" oifname != "nsml*" meta nfproto ipv4 ct state new ct status ! dnat drop',
    ]


@pytest.mark.skipif(shutil.which("nft", path="/usr/sbin:/sbin") is None, reason="no program nft")
@pytest.mark.parametrize(
    "metadata",
    [METADATA_ADDRESSES, (), ("169.254.0.0/16", "169.254.169.254", "10.0.0.1"), ("fd00::/8",)],
)
def test_the_rules_are_sound(metadata: tuple[str, ...]) -> None:
    text = ruleset(
        "t",
        NetworkRules(uids=(1, 2), metadata=metadata),
        HostNetworks(
            bridges=["b", "c"],
            ways_out=["eth0"],
            subnet="10.0.0.0/20",
            engines=["br-0123456789ab", "docker0"],
            lent=["eth0"],
        ),
    )
    done = subprocess.run(
        ["/usr/bin/env", "PATH=/usr/sbin:/sbin:/usr/bin:/bin", "nft", "--check", "-f", "-"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    if "Operation not permitted" in done.stderr:
        pytest.skip("to check rules takes root")
    assert done.returncode == 0, done.stderr


HEAD = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
ROUTES = HEAD + (
    "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
    "eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    "tun0\t000012C6\t00000000\t0001\t0\t0\t0\t00F8FFFF\t0\t0\t0\n"
    "nsmlab\t001012C6\t00000000\t0001\t0\t0\t0\t00F0FFFF\t0\t0\t0\n"
)


def test_a_subnet_that_leads_nowhere_else() -> None:
    assert free_subnet("198.18.0.0/15", HEAD) == ipaddress.ip_network("198.18.0.0/20")
    assert free_subnet("198.18.0.0/15", ROUTES) == ipaddress.ip_network("198.18.32.0/20")
    assert subnet_of("nsmlab", ROUTES) == ipaddress.ip_network("198.18.16.0/20")
    assert subnet_of("nsmlcd", ROUTES) is None
    assert uplinks(ROUTES) == ["eth0"]
    with pytest.raises(NoNetwork, match="choose another range"):
        free_subnet("198.18.0.0/19", ROUTES)


def test_resolvers_that_a_session_reaches() -> None:
    own = "# made by\nnameserver 127.0.0.53\nnameserver fe80::1%eth0\nsearch lab\noptions edns0\n"
    upstream = "nameserver ::1\nnameserver 10.0.0.53\nnameserver 10.0.0.54\nsearch elsewhere\n"
    rest = "# made by\nsearch lab\noptions edns0\n"
    found = "nameserver 10.0.0.53\nnameserver 10.0.0.54\n" + rest
    assert resolv_conf([own, "", upstream], []) == found
    assert resolv_conf([own, "", upstream], ["192.0.2.9"]) == "nameserver 192.0.2.9\n" + rest
    assert resolv_conf(["nameserver 10.0.0.1\n", upstream], []) == "nameserver 10.0.0.1\n"
    assert resolv_conf([""], []) == ""
    with pytest.raises(NoNetwork, match="session_nameservers"):
        resolv_conf([own, "nameserver ::1\n"], [])


def test_the_machines_name_is_the_sessions_own_loopback() -> None:
    text = "127.0.0.1 localhost box\n::1 localhost\n192.0.2.7 box.lab box # own\n10.0.0.9 data data.lab\n"
    assert hosts_file(text, "box.lab").splitlines() == [
        "127.0.0.1 localhost",
        "::1 localhost ip6-localhost ip6-loopback",
        "127.0.1.1 box.lab",
        "10.0.0.9 data data.lab",
    ]


def test_the_machines_own_addresses_are_read_without_its_loopback() -> None:
    tries = (
        "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n"
        "     +-- 192.0.2.0/24 2 0 2\n        |-- 192.0.2.0\n           /24 link UNICAST\n"
        "        |-- 192.0.2.2\n           /32 host LOCAL\n        |-- 192.0.2.255\n"
        "           /32 link BROADCAST\n     |-- 127.0.0.1\n        /32 host LOCAL\n"
    )
    assert [str(one) for one in local_addresses(2 * tries)] == ["192.0.2.2/32"]
