"""What names an image and what does not."""

from __future__ import annotations

import pytest

from nsml.spec.images import (
    NamesNoImage,
    asked_image,
    is_made_here,
    is_reference,
    parts_of,
    registry_of,
    whole_reference,
    why_never_pulled,
)

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("torch", ("torch", "", "")),
        ("nsml/default_ml:latest", ("nsml/default_ml", "latest", "")),
        ("registry.lab:5000/kim/torch:2.6-cu12", ("registry.lab:5000/kim/torch", "2.6-cu12", "")),
        (f"localhost:5000/a__b/c-d.e@{DIGEST}", ("localhost:5000/a__b/c-d.e", "", DIGEST)),
        (f"a:b@{DIGEST}", ("a", "b", DIGEST)),
        ("Registry.Lab/x", ("Registry.Lab/x", "", "")),
        ("UPPER:5000/x", ("UPPER:5000/x", "", "")),
        ("localhost/x:1", ("localhost/x", "1", "")),
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
        *("UPPER/x", "Kim/torch:1", "LOCALHOST/x", "-a/b", "a-/b", "0" * 64, "a.b/C"),
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


@pytest.mark.parametrize(
    ("text", "image"),
    [
        ("#nsml: a/b:1\nfrom setuptools import setup\n", "a/b:1"),
        ("#nsml:a/b", "a/b"),
        ("# nsml: a/b", "a/b"),
        ("\ufeff#nsml: a/b", "a/b"),
        ("#nsml: a/b\r\nimport x\r\n", "a/b"),
        ("#nsml: a/b   # of the lab", "a/b"),
        ("#!/usr/bin/env python3\n# -*- coding: utf-8 -*-\n\n#nsml: a/b\n", "a/b"),
        ("#nsml: a/b\n#nsml: bad;name\n", "a/b"),
        ("", None),
        ("import x\n#nsml: a/b\n", None),
        ('"""\n#nsml: a/b\n"""\n', None),
        ("torch\n#nsml: a/b\n", None),
        ("# for nsml: see the docs\n", None),
        ("#nsmls: a/b\n", None),
    ],
)
def test_lines_that_ask_for_an_image(text: str, image: str | None) -> None:
    assert asked_image([("setup.py", text)]) == image


@pytest.mark.parametrize(
    "line",
    [
        *("#nsml: bad;name", "#nsml: bad ;name", "#nsml: bad name", "#nsml:", "#nsml: # none"),
        *("# nsml: $(id)", "#nsml: ../x", "#nsml: --rm", "#nsml: a/B", "#nsml: a/b#c"),
    ],
)
def test_a_line_that_names_none_is_shown_whole(line: str) -> None:
    with pytest.raises(NamesNoImage) as refused:
        asked_image([("setup.py", f"#!/usr/bin/python3\n{line}\nimport os\n")])
    assert f"setup.py, line 2: {line!r} names no image" == str(refused.value)


def test_the_first_file_with_such_a_line_decides() -> None:
    assert asked_image([("setup.py", "import x\n"), ("requirements.txt", "#nsml: b")]) == "b"
    assert asked_image([("setup.py", "#nsml: a"), ("requirements.txt", "#nsml: b c")]) == "a"


@pytest.mark.parametrize(
    "names",
    [
        ("torch", "torch:latest", "library/torch", "docker.io/torch", "docker.io/library/torch"),
        ("torch:1", "index.docker.io/library/torch:1", "registry-1.docker.io/library/torch:1"),
        ("lab/x:1", "docker.io/lab/x:1", "DOCKER.IO/lab/x:1"),
        ("GHCR.io/lab/x", "ghcr.io/lab/x:latest"),
        (f"x@{DIGEST}", f"x:1@{DIGEST}", f"docker.io/library/x:latest@{DIGEST}"),
    ],
)
def test_all_names_of_an_image_have_one_form(names: tuple[str, ...]) -> None:
    forms = set(map(whole_reference, names))
    assert len(forms) == 1
    assert set(map(whole_reference, forms)) == forms, "which is its own form"
    assert len(set(map(registry_of, names))) == 1


@pytest.mark.parametrize(
    "name", ["docker.io/localhost/x", "docker.io/registry.lab/x", "library/a/b", "localhost/x"]
)
def test_the_one_form_leads_to_the_same_registry(name: str) -> None:
    assert registry_of(whole_reference(name)) == registry_of(name)


def test_the_image_that_is_made_here_is_asked_of_no_registry_under_any_name() -> None:
    for name in ("nsml-base", "nsml-base:2", "docker.io/nsml-base", "docker.io/library/nsml-base"):
        assert is_made_here(name)
    for name in ("lab/nsml-base", "ghcr.io/nsml-base", "nsml-base-2"):
        assert not is_made_here(name)


@pytest.mark.parametrize(
    "name",
    [
        *("169.254.169.254/x", "169.254.169.254:80/latest/meta-data", "0.0.0.0/x", "224.0.0.1:5/x"),
        *("127.1:80/x", "0x7f.1:80/x", "2130706433:80/x", "010.0.0.1/x", "1.2.3.4.5/x"),
        *("ghcr.io:0/x", "ghcr.io:65536/x"),
    ],
)
def test_what_is_no_registry_is_refused_before_a_node_sees_it(name: str) -> None:
    assert is_reference(name)
    assert why_never_pulled(name)
    with pytest.raises(NamesNoImage):
        asked_image([("setup.py", f"#nsml: {name}")])


@pytest.mark.parametrize(
    "name", ["torch", "ghcr.io/x", "127.0.0.1:5000/x", "10.0.0.1/x", "lab:5/x"]
)
def test_what_a_site_may_allow_is_its_nodes_business(name: str) -> None:
    assert why_never_pulled(name) == ""
