"""The version names the commit: from the checkout, or from what a build left."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest

from nsml._version import RELEASE, VERSION, commit_of, version_of

ROOT = Path(__file__).parents[3]


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(
        ["git", *identity, *words],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull},
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with one commit, whose package is `nsml`."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    commit(folder)
    return folder


def commit(folder: Path) -> str:
    git(folder, "commit", "-q", "--allow-empty", "-m", "x")
    return git(folder, "rev-parse", "HEAD")


def test_the_package_is_of_this_release() -> None:
    assert re.fullmatch(rf"{re.escape(RELEASE)}(\+g[0-9a-f]{{12}})?", VERSION)
    assert metadata.version("nsml").partition("+")[0] == RELEASE


def test_each_commit_has_a_version(checkout: Path) -> None:
    versions = []
    for _ in range(2):
        made = commit(checkout)
        assert commit_of(str(checkout / "nsml")) == made
        versions.append(version_of(str(checkout / "nsml")))
    assert len({*versions, RELEASE}) == 3


def test_a_commit_is_found_however_git_keeps_it(checkout: Path, tmp_path: Path) -> None:
    made = git(checkout, "rev-parse", "HEAD")
    git(checkout, "pack-refs", "--all")
    assert commit_of(str(checkout / "nsml")) == made
    git(checkout, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    later = commit(tmp_path / "side")
    assert later != made
    assert commit_of(str(tmp_path / "side/nsml")) == later
    git(checkout, "checkout", "-q", "--detach", later)
    assert commit_of(str(checkout / "nsml")) == later


def test_what_a_build_left_counts_before_a_checkout(checkout: Path) -> None:
    package = checkout / "nsml"
    package.mkdir()
    (package / "COMMIT").write_text("a" * 40 + "\n")
    assert version_of(str(package)) == f"{RELEASE}+g{'a' * 12}"


@pytest.mark.parametrize("text", ["", "not a commit", "ref: refs/heads/gone", "\x00\xff"])
def test_without_a_commit_it_is_the_release(tmp_path: Path, text: str) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/HEAD").write_text(text)
    assert version_of(str(tmp_path / "nsml")) == RELEASE
    shutil.rmtree(tmp_path / ".git")
    assert version_of(str(tmp_path / "nsml")) == RELEASE


@pytest.mark.slow
def test_an_installed_wheel_knows_the_commit_it_was_built_from(tmp_path: Path) -> None:
    """Built twice: from a checkout, and from the source archive of one, which has no .git."""
    source = tmp_path / "source"
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(ROOT), str(source)], check=True)
    for file in ("hatch_build.py", "pyproject.toml", "nsml/_version.py"):
        shutil.copy(ROOT / file, source / file)
    wanted = version_of(str(source / "nsml"))
    assert "+g" in wanted
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(tmp_path), str(source)], check=True)
    [wheel] = tmp_path.glob("nsml-*.whl")
    assert wanted in wheel.name
    venv.create(tmp_path / "installed", with_pip=False)
    python = tmp_path / "installed/bin/python"
    target = next((tmp_path / "installed").glob("lib/python*/site-packages"))
    shutil.unpack_archive(wheel, target, "zip")
    shown = subprocess.check_output(
        [python, "-c", "import nsml._version as v; print(v.VERSION)"],
        cwd=tmp_path,
        text=True,
        env={"PATH": ""},
    )
    assert shown.strip() == wanted
