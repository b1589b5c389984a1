"""The files of a folder that a Dockerfile may copy, without an engine."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from nodeagent.environments import dockerfile_builds
from nodeagent.environments.dockerfile_builds import Context, Recipe
from nodeagent.environments.errors import EnvironmentCancelled, EnvironmentFailed
from nsml.packages.dockerfile import MOST_BYTES

if TYPE_CHECKING:
    from pathlib import Path


def made(folder: Path, ignores: str = "", *files: str) -> Context:
    (folder / ".dockerignore").write_text(ignores)
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return Context(Recipe(folder=folder, path="Dockerfile"), threading.Event())


@pytest.mark.parametrize(
    ("ignores", "left"),
    [
        ("", {"a.py", "d/b.py", "d/e/c.py", "[x]"}),
        ("# d\n*.py", {"d/b.py", "d/e/c.py", "[x]"}),
        ("**/*.py\n!d/e", {"d/e/c.py", "[x]"}),
        ("/d/", {"a.py", "[x]"}),
        ("d/**", {"a.py", "[x]"}),
        ("**/e/**\n\\[x\\]", {"a.py", "d/b.py"}),
        ("d/**/c.py\n[^a].py\n.", {"a.py", "d/b.py", "[x]"}),
        ("*\n!d\nd/e", {"d/b.py"}),
        ("**", set()),
        ("\ufeff*.py\n", {"d/b.py", "d/e/c.py", "[x]"}),
        (" # d\n#*.py", {"a.py", "d/b.py", "d/e/c.py", "[x]"}),
        ("../a.py\n!\n..", {"a.py", "d/b.py", "d/e/c.py", "[x]"}),
        ("/../a.py", {"d/b.py", "d/e/c.py", "[x]"}),
        ("**.py", {"[x]"}),
        ("d/**c.py\na**", {"d/b.py", "[x]"}),
        ("**/d/**/**/c.py\n?.[a-p]y\n[^\\]a-z.]*", {"d/b.py"}),
        ("d/e/c.p\nd/e/c.pyc\n*/c.py\n.py", {"a.py", "d/b.py", "d/e/c.py", "[x]"}),
        ("**\n!**/e/*.py", {"d/e/c.py"}),
    ],
)
def test_patterns_leave_out_what_they_do_for_docker(
    tmp_path: Path, ignores: str, left: set[str]
) -> None:
    context = made(tmp_path, ignores, "a.py", "d/b.py", "d/e/c.py", "[x]")
    assert set(context.files) - {".dockerignore"} == left


def test_no_pattern_takes_long(tmp_path: Path) -> None:
    deep = "/".join("a" * 30)
    context = made(tmp_path, "*a" * 40 + "b\n" + "**/*a/" * 20 + "b", "a" * 200, f"{deep}/c")
    assert {"a" * 200, f"{deep}/c"} <= set(context.files)
    made(tmp_path, ("**/" + "a/" * 3) * 40 + "b\n" + "**/*" * 20 + "*a*b")
    assert context.matching("*/" * 30 + "*b") == []
    assert context.matching("*/" * 30 + "c") == [(f"{deep}/c", "c")]


def test_folders_and_patterns_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvironmentFailed, match="over 1000 patterns"):
        made(tmp_path, "x\n" * 1001)
    monkeypatch.setattr(dockerfile_builds, "_MOST_FILES", 3)
    assert len(made(tmp_path, "", "a", "b").files) == 3
    for ignores in ("", "*", "d\n!a"):
        with pytest.raises(EnvironmentFailed, match=r"over 3 files: \.nsmlignore"):
            made(tmp_path, ignores, "c" if ignores else "d/c", "d/e")
    (tmp_path / "c").unlink()
    assert made(tmp_path, "d").files == [".dockerignore", "a", "b"], "none is looked at in there"


def test_what_is_no_list_of_patterns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match=r"\.dockerignore has over"):
        made(tmp_path, "#" * MOST_BYTES + "\n.env")
    for pattern in ("a**b", "a**/b", "[z-a]"):
        with pytest.raises(EnvironmentFailed, match=r"within a name|not a set"):
            made(tmp_path, pattern)


def test_a_cancelled_build_reads_no_more(tmp_path: Path) -> None:
    cancelled = threading.Event()
    (tmp_path / "a").write_text("a")
    recipe = Recipe(folder=tmp_path, path="Dockerfile")
    context = Context(recipe, cancelled)
    cancelled.set()
    with pytest.raises(EnvironmentCancelled):
        context.digest()
    with pytest.raises(EnvironmentCancelled):
        context.matching("a")
    with pytest.raises(EnvironmentCancelled):
        Context(recipe, cancelled)
