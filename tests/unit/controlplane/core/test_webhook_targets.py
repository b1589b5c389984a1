"""Which URLs and addresses the platform calls for users."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.webhook_targets import MOST_URL, pinned, target_of
from controlplane.domain.errors import InvalidRequest
from nsml.common.hosts import is_public

PUBLIC = "93.184.216.34"


def test_a_url_is_taken_apart_and_only_its_origin_may_be_shown() -> None:
    target = target_of("https://hooks.example.org/services/T0/secret?x=1#y", allows_private=False)
    assert target == ("https", "hooks.example.org", 443, "/services/T0/secret?x=1")
    assert target.origin == "https://hooks.example.org"
    assert target_of("https://a:8443", allows_private=False)[2:] == (8443, "/")
    assert target_of("https://a:8443", allows_private=False).origin == "https://a:8443"
    assert target_of("http://[::1]:80/", allows_private=True).origin == "http://[::1]"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hooks.example.org/secret",
        "http://hooks.example.org/secret",
        "file:///etc/secret",
        "gopher://hooks.example.org/secret",
        "https:///secret",
        "https://kim:secret@hooks.example.org/",
        "https://secret@hooks.example.org/",
        "https://hooks.example.org:99999/secret",
        "https://hooks.example.org:x/secret",
        "https://[::1/secret",
        "https://hooks.example.org/secret\r\nHost: other",
        "https://hooks.example.org/a secret",
        "https://höoks.example.org/secret",
        f"https://hooks.example.org/secret{'x' * MOST_URL}",
    ],
)
def test_what_is_no_such_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        target_of(url, allows_private=False)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "names_setting"),
    [
        ("http://10.0.0.8/", True),
        ("http://hooks.lab/", True),  # which may be in a private network
        (f"http://{PUBLIC}/", False),
        ("ftp://hooks.lab/", False),
    ],
)
def test_the_setting_is_named_where_it_would_help(url: str, names_setting: bool) -> None:
    with pytest.raises(InvalidRequest) as refused:
        target_of(url, allows_private=False)
    assert ("webhooks_to_private" in refused.value.attempt) == names_setting


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST.",
        "hooks.localhost",
        "127.0.0.1:1",
        "10.0.0.8",
        "169.254.169.254",
        "[::1]",
        "[fd00::7]",
        "[::ffff:10.0.0.1]",
    ],
)
def test_a_host_that_can_be_no_public_one_is_refused_before_it_is_kept(host: str) -> None:
    with pytest.raises(InvalidRequest, match="private network"):
        target_of(f"https://{host}/secret", allows_private=False)
    assert target_of(f"https://{host}/secret", allows_private=True).path == "/secret"
    assert target_of(f"https://{PUBLIC}/", allows_private=False).host == PUBLIC


@given(st.text(max_size=80))
def test_no_text_is_anything_else_than_taken_or_refused(text: str) -> None:
    try:
        target = target_of(f"https://{text}", allows_private=True)
    except InvalidRequest:
        return
    assert target.host
    assert target.path.startswith("/")
    assert not any(one in target.path + target.host for one in "\r\n ")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.0.1",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.9.9",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "192.0.2.1",
        "198.18.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "::",
        "::1",
        "fe80::1%eth0",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
        "ff0e::1",
        "::ffff:127.0.0.1",
        "::ffff:93.184.216.34",
        "2002:7f00:1::",
        "2001:0:7f00:1::",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::a00:1",
        "::127.0.0.1",
        "::ffff:0:127.0.0.1",
        "fec0::1",
        "5f00::1",
        "4000::1",
        "192.88.99.1",
        "3fff::1",
        "no address",
    ],
)
def test_what_is_not_public_is_not_called_unless_the_operator_allows(address: str) -> None:
    assert not is_public(address)
    for addresses in ([address], [PUBLIC, address], [address, PUBLIC]):
        with pytest.raises(InvalidRequest, match="private network"):
            pinned(addresses, allows_private=False)
    assert pinned([address, PUBLIC], allows_private=True) == address


def test_a_public_address_is_called() -> None:
    assert is_public("2606:2800:220:1:248:1893:25c8:1946")
    assert pinned([PUBLIC, "1.1.1.1"], allows_private=False) == PUBLIC
    with pytest.raises(InvalidRequest, match="no address"):
        pinned([], allows_private=True)
