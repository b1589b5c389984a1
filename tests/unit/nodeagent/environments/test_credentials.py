"""Passwords in the URLs that a machine is configured with: builds that run code of packages get none, however they are written."""

from __future__ import annotations

from itertools import product

import pytest

from nodeagent.environments.credentials import (
    bare_options,
    bare_proxies,
    bare_proxy,
    key_options,
    without_secrets,
)
from nodeagent.environments.errors import EnvironmentFailed
from nodeagent.environments.installer import text_without_secrets

USERS = (
    *("kim@", "kim:hunter2@", ":hunter2@", "hunter2@", "kim:hunter2@hunter2@", "kim@lab:hunter2@"),
    *(
        "kim:hunter2/hunter2@",
        "kim:/hunter2@",
        "kim://hunter2@",
        "kim:hunter2#@",
        "kim:hunter2?x=@",
    ),
    *("kim:hunter2 hunter2@", "kim:hunter2:3128@", "kim%40lab:hunter2%2F@"),
)
HOSTS = ("proxy", "proxy.lab:3128", "10.0.0.1:80", "[2001:db8::1]:3128")


@pytest.mark.parametrize("scheme", ["", "http://", "HTTPS://", "socks5h://", "//"])
def test_of_a_proxy_nothing_is_left_but_where_it_is(scheme: str) -> None:
    kept = "" if scheme == "//" else scheme
    for user, host, end in product(("", *USERS), HOSTS, ("", "/", "/hunter2", "?key=hunter2")):
        url = f"{scheme}{user}{host}{end}"
        assert bare_proxy(url) == f"{kept}{host}", url
        for name in ("http_proxy", "HTTPS_PROXY", "all_proxy", "FTP_PROXY"):
            assert bare_proxies({name: f" {url}\n"}) == {name: f"{kept}{host}"}
        assert bare_options({"proxy": url}) == {"proxy": f"{kept}{host}"}


@pytest.mark.parametrize("url", ["kim:hunter2", "http://kim:hunter2", "kim:hunter2@", "http://a b"])
def test_where_it_is_not_clear_what_is_a_password_nothing_is_built(url: str) -> None:
    for failing in (
        lambda: bare_proxies({"https_proxy": url}),
        lambda: bare_options({"proxy": url}),
    ):
        with pytest.raises(EnvironmentFailed, match="an administrator writes") as refused:
            failing()
        assert "hunter2" not in str(refused.value)
    assert "hunter2" not in str(without_secrets({"proxy": url}))


def test_hosts_without_a_proxy_are_kept_and_nothing_else() -> None:
    environ = {"no_proxy": "localhost,.lab,kim:hunter2@x,10.0.0.0/8", "TOKEN": "hunter2"}
    assert bare_proxies(environ) == {"no_proxy": "localhost,.lab,10.0.0.0/8"}
    assert bare_proxies({"NO_PROXY": "a@b", "http_proxy": ""}) == {}


@pytest.mark.parametrize("name", ["index-url", "extra-index-url", "find-links"])
def test_indexes_have_no_password_or_are_refused(name: str) -> None:
    for user in ("", "kim@", "kim:hunter2@", "kim:hunter2@hunter2@", "kim%40lab:hunter2%2F@"):
        for end in ("", "?key=hunter2", "#hunter2"):
            given = {name: f"https://{user}index.lab:8443/simple{end}", "client-cert": "/key.pem"}
            assert bare_options(given) == {name: "https://index.lab:8443/simple"}
    for url in (
        *("https://kim:hunter2/x@index/simple", "https://kim:1/hunter2@index/simple"),
        *("https://kim:hun ter2@index/simple", "https://kim:hunter2", "kim:hunter2@index/simple"),
        *("https://kim@lab/hunter2@index/simple", "https://kim:hunter2?@index", "ssh://kim@index"),
    ):
        with pytest.raises(EnvironmentFailed, match=f"^{name} in the pip configuration") as refused:
            bare_options({name: f"https://first/simple {url}"})
        assert "hunter2" not in str(refused.value)


def test_folders_of_packages_are_kept() -> None:
    places = {"find-links": "/srv/a@b /srv/wheels file:///srv/a@b wheels"}
    assert bare_options(places) == without_secrets(places) == places


def test_passwords_are_in_no_key() -> None:
    options = {
        "index-url": "https://kim:secret@a/simple",
        "extra-index-url": "https://b/x kim:se/cret@c/d https://kim:se/cr@et@c",
        "proxy": "kim:secret@proxy:3128",
    }
    bare = {"index-url": "https://a/simple", "proxy": "proxy:3128"}
    assert without_secrets(options) == {**bare, "extra-index-url": "https://b/x c/d https://c"}
    certain = {**options, "extra-index-url": "https://b/x https://kim:se@cret@c"}
    assert key_options(certain) == {**bare, "extra-index-url": "https://b/x https://c"}
    text = "deb http://kim:se@cret@mirror/debian bookworm main\n"
    assert text_without_secrets(text) == "deb http://mirror/debian bookworm main\n"


@pytest.mark.parametrize("name", ["index-url", "extra-index-url", "find-links"])
def test_no_two_indexes_are_one_for_keys(name: str) -> None:
    urls = [
        *(f"https://{host}/{path}@a/simple" for host in ("b", "c") for path in ("team", "lab")),
        *("https://a/simple", "https://b?x@a/simple", "https://b#x@a/simple"),
        *("team@a/simple", "lab@a/simple", "a/simple", "file://b/team@a/simple"),
    ]
    assert len({key_options({name: url})[name] for url in urls}) == len(urls)
    given = {name: "https://kim:secret@b/team@a/simple HTTPS://:secret@c/lab@a"}
    assert key_options(given) == {name: "https://b/team@a/simple HTTPS://c/lab@a"}
