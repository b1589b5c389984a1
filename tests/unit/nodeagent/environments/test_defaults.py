"""The packages of code that names none, and what code that names some gets beside them."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from nodeagent.environments.defaults import NAMES, read_defaults
from nodeagent.environments.downloads import Downloads
from nodeagent.environments.installer import LOCK
from nodeagent.environments.virtualenvs import Environments
from nsml.packages.requirements import Requirements, RequirementsRefused, name_of
from tests.support.sandboxes import sandbox_here
from tests.support.wheels import make_wheel


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host whose pip is configured to look into one folder."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for version in ("1.0", "2.0"):
        make_wheel(folder, "usual", f"V = {version!r}", version=version)
        make_wheel(folder, "needed", version=version)
    make_wheel(folder, "large", needs="Requires-Dist: needed==1.0\n")
    make_wheel(folder, "own")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def with_default(data: Path, *default: str) -> Environments:
    return Environments(
        data / "environments", sandbox_here(), Downloads(data / "downloads"), default=default
    )


def locked(environment: Path) -> Sequence[str]:
    return [line.split()[0] for line in (environment / LOCK).read_text().splitlines()]


def test_code_that_names_nothing_has_the_default_packages_which_are_everybodys(
    tmp_path: Path, index: Path
) -> None:
    environments = with_default(tmp_path, "usual", "large")
    environments.build_default(lambda _: None, threading.Event(), built_after=0.0)
    said: list[bytes] = []
    found = [
        # nor does one user have it made anew for all
        environments.provide(Requirements(), said.append, owner=owner, built_after=2e9).folder
        for owner in ("kim", "lee")
    ]
    assert found[0] == found[1]
    assert not said, "it was there before anybody waited"
    assert locked(found[0]) == ["large==1.0", "needed==1.0", "usual==2.0"]


def test_packages_that_code_names_are_added_to_them_and_the_files_are_the_same(
    tmp_path: Path, index: Path
) -> None:
    environments = with_default(tmp_path, "usual<2", "large")
    default = environments.provide(Requirements(), lambda _: None, owner="kim").folder
    make_wheel(index, "usual", "V = 'newer'", version="1.5")
    for owner in ("kim", "lee"):
        wanted = Requirements(lines=("own",))
        made = environments.provide(wanted, lambda _: None, owner=owner).folder
        # in the versions that are there already
        assert locked(made) == ["large==1.0", "needed==1.0", "own==1.0", "usual==1.0"]
        for path in default.rglob("usual*.py*"):
            assert (made / path.relative_to(default)).samefile(path)
            assert path.stat().st_uid == os.geteuid()


@pytest.mark.parametrize(
    ("lines", "found", "notes"),
    [
        (("usual==1.0",), ["large==1.0", "needed==1.0", "usual==1.0"], 0),
        # what cannot be had beside them is had without them
        (("needed==2.0",), ["needed==2.0"], 1),
    ],
)
def test_what_code_names_counts_more(
    tmp_path: Path, index: Path, lines: Sequence[str], found: Sequence[str], notes: int
) -> None:
    said: list[bytes] = []
    environments = with_default(tmp_path, "usual", "large")
    made = environments.provide(Requirements(lines=lines), said.append, owner="kim").folder
    assert locked(made) == found
    assert b"".join(said).count(b"note: without the node's default packages: No solution") == notes


def test_a_lock_is_installed_as_it_is(tmp_path: Path, index: Path) -> None:
    bare = with_default(tmp_path / "bare")
    made = bare.provide(Requirements(lines=("own",)), lambda _: None, owner="kim").folder
    lines = tuple((made / LOCK).read_text().splitlines())
    environments = with_default(tmp_path, "usual")
    made = environments.provide(Requirements(lines=lines), lambda _: None, owner="kim").folder
    assert locked(made) == ["own==1.0"]


def test_default_packages_that_cannot_be_had_stop_nobody(tmp_path: Path, index: Path) -> None:
    said: list[bytes] = []
    environments = with_default(tmp_path, "absent")
    made = environments.provide(Requirements(), said.append, owner="kim").folder
    assert b"nsml: note: without the node's default packages: " in b"".join(said)
    run = [str(made / "bin" / "python"), "-c", "print('runs')"]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == "runs\n"


def test_what_the_setting_may_name(tmp_path: Path) -> None:
    assert read_defaults("").lines == ()
    for name in NAMES:
        found = {name_of(line) for line in read_defaults(name).lines}
        assert {"torch", "numpy", "scikit-learn", "pillow"} <= found
    own = tmp_path / "site.txt"
    own.write_text("--pre\n")
    with pytest.raises(RequirementsRefused, match="names no package"):
        read_defaults(str(own))
    own.write_text("-e /srv/code\n")
    with pytest.raises(RequirementsRefused):
        read_defaults(str(own))
    own.write_text("numpy  # for all\n")
    assert read_defaults(str(own)).lines == ("numpy",)
    assert read_defaults(str(own)).changed_at == own.stat().st_mtime
    with pytest.raises(OSError, match=r"no\.txt"):
        read_defaults(str(tmp_path / "no.txt"))
