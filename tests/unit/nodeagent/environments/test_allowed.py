"""Which images sessions may name: registries, addresses in place of them, and what is on the node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from nodeagent.environments.allowed import AllowedImages, is_pattern
from nodeagent.environments.errors import EnvironmentFailed
from nsml.spec.images import whole_reference

PUBLIC = {"ghcr.io": ["140.82.112.34"], "evil.example.com": ["203.0.114.9", "127.0.0.1"]}


def check(
    reference: str,
    *patterns: str,
    always: Iterable[str] = (),
    addresses: Mapping[str, Iterable[str]] = PUBLIC,
) -> None:
    allowed = AllowedImages(patterns, always, addresses=lambda host: addresses.get(host, ()))
    allowed.check_registry(whole_reference(reference))


@pytest.mark.parametrize(
    ("reference", "pattern"),
    [
        ("python", "*"),
        ("ghcr.io/lab/x:1", "*"),
        ("registry.example.org/x", "*"),
        ("python:3.12", "python"),
        ("docker.io/library/python:3.12", "python:3.*"),
        ("pytorch/pytorch", "pytorch/*"),
        ("pytorch/pytorch", "docker.io/*"),
        ("GHCR.io/lab/x:1", "ghcr.io/lab/*"),
        ("127.0.0.1:5000/lab/x", "127.0.0.1:5000/*"),
        ("localhost:5000/x", "localhost:5000/x"),
        ("10.0.0.7/x", "10.0.0.7/*"),
        ("evil.example.com/x", "evil.example.com/*"),
    ],
)
def test_what_may_be_pulled(reference: str, pattern: str) -> None:
    check(reference, pattern)


@pytest.mark.parametrize(
    ("reference", "pattern"),
    [
        ("127.0.0.1:5000/x", "*"),
        ("127.0.0.1:5000/x", "127.0.0.1:5001/*"),
        ("127.0.0.1/x", "*"),
        ("localhost/x", "*"),
        ("localhost:8080/x", "*"),
        ("10.0.0.7/x", "*"),
        ("192.168.1.1:443/x", "192.168.*/*"),
        ("8.8.8.8/x", "*"),
        ("ghcr.io:443/x", "*"),
        ("node:80/x", "*"),
        ("evil.example.com/x", "*"),
        ("evil.example.com/x", "*.example.com/*"),
        ("ghcr.io/other/x", "ghcr.io/lab/*"),
        ("ghcr.io/lab/x:2", "ghcr.io/lab/*:1"),
        ("notghcr.io/lab/x", "ghcr.io/lab/*"),
        ("python", "ghcr.io/*"),
        ("x/python", "python"),
        ("python", "local:*"),
    ],
)
def test_what_may_not(reference: str, pattern: str) -> None:
    with pytest.raises(EnvironmentFailed, match="allowed_images"):
        check(reference, pattern)
    check(reference, pattern, always=[reference])


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "fe80::1%2", "::ffff:127.0.0.1"]
)
def test_a_name_that_leads_inside_is_not_public(address: str) -> None:
    addresses = {"registry.example.org": ["140.82.112.34", address]}
    with pytest.raises(EnvironmentFailed, match="not a public registry"):
        check("registry.example.org/x", "*", addresses=addresses)


@pytest.mark.parametrize(
    "reference",
    [
        *("169.254.169.254/x", "169.254.169.254:80/x", "0.0.0.0:5000/x", "224.0.0.1/x"),
        *("127.1:5000/x", "2130706433:80/x", "0x7f.0.0.1/x", "0177.0.0.1:80/x", "127.0.0.01/x"),
        *("255.255.255.255/x", "ghcr.io:0/x", "ghcr.io:99999/x"),
    ],
)
def test_what_no_setting_allows(reference: str) -> None:
    host = reference.partition("/")[0]
    with pytest.raises(EnvironmentFailed, match="cannot be used"):
        check(reference, "*", f"{host}/*", always=[reference])


def test_images_that_are_on_the_node_alone() -> None:
    allowed = AllowedImages(["*", "local:team/*", "local:one:1"], ["lab/default:3"])
    for reference in ("team/x:1", "one:1", "lab/default:3", "nsml-base:2"):
        assert allowed.is_local_allowed(reference)
    for reference in ("other/x:1", "one:2", "python:3", "lab/default:4"):
        assert not allowed.is_local_allowed(reference)


@pytest.mark.parametrize("text", ["", " ", "a b", "a;b", "-a/x", "local:", "a:b:c", "http://x/y"])
def test_what_is_no_pattern(text: str) -> None:
    assert not is_pattern(text)


@pytest.mark.parametrize(
    "text",
    ["*", "local:*", "python", "python:3.*", "registry.lab:5000/*", "*.lab.org/x/*", "10.0.0.7/*"],
)
def test_patterns(text: str) -> None:
    assert is_pattern(text)
