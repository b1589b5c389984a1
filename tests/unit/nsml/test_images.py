"""What names an image and what does not."""

from __future__ import annotations

import pytest

from nsml.images import is_reference, parts_of, whole_reference

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("torch", ("torch", "", "")),
        ("nsml/default_ml:latest", ("nsml/default_ml", "latest", "")),
        ("registry.lab:5000/kim/torch:2.6-cu12", ("registry.lab:5000/kim/torch", "2.6-cu12", "")),
        (f"localhost:5000/a__b/c-d.e@{DIGEST}", ("localhost:5000/a__b/c-d.e", "", DIGEST)),
        (f"a:b@{DIGEST}", ("a", "b", DIGEST)),
    ],
)
def test_references(reference: str, parts: tuple[str, str, str]) -> None:
    assert is_reference(reference)
    assert parts_of(reference) == parts


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "a b", "a;reboot", "$(id)", "`id`", "a\n", "a\nFROM b", "-v", "--privileged"),
        *("A", "a/B", "a//b", "/a", "a/", "a:", "a@", "a:b:c", "a@sha256:12", "a|b", "a&b", "a>b"),
        *("../a", "a/../b", "http://a/b", "a:" + "t" * 129, "a" * 256, "a\0", "ä", "a:ä", "a'b"),
        *("host:port/a", ".a", "a..b", "a___b", f"a@{DIGEST}\n", DIGEST),
    ],
)
def test_what_is_none(text: str) -> None:
    assert not is_reference(text)
    with pytest.raises(ValueError, match="not the name of an image"):
        parts_of(text)


def test_what_has_no_tag_means_the_latest() -> None:
    assert whole_reference("a/b") == "a/b:latest"
    assert whole_reference("a/b:1") == "a/b:1"
    assert whole_reference(f"a@{DIGEST}") == f"a@{DIGEST}"
