"""Which sessions in containers have the default packages, and what is installed upon these."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.engine.client import Engine
from nodeagent.engine.images import StoredImage
from nodeagent.environments.default_images import DefaultImage
from nodeagent.environments.image_settings import ImageSettings
from nodeagent.environments.images import Images
from nsml.packages.requirements import Requirements

HASH = f"--hash=sha256:{'a' * 64}"


def images_with(folder: Path, *default_packages: str) -> Images:
    settings = ImageSettings(
        default="lab/base:3",
        default_packages=default_packages,
        aliases={"nsml/default_ml:elsewhere": "lab/other:1", "nsml/default_ml:cuda9": "lab/base:3"},
    )
    return Images(folder, Engine(folder / "none.sock"), settings, mark="m")


@pytest.mark.parametrize(
    ("asked", "wanted", "has_them"),
    [
        ("", None, True),
        ("", "nsml/default_ml", True),
        ("", "nsml/default_ml:cuda9", True),
        ("nsml/default_ml", "python:3.12", True),
        ("", "nsml/default_ml:elsewhere", False),
        ("python:3.12", None, False),
        ("python:3.12", "nsml/default_ml", False),
        ("", "lab/base:3", False),
    ],
)
def test_who_has_the_default_packages(
    tmp_path: Path, asked: str, wanted: str | None, *, has_them: bool
) -> None:
    images = images_with(tmp_path, "usual")
    assert images.has_default_packages(asked, wanted) is has_them
    assert not images_with(tmp_path).has_default_packages(asked, wanted), "there are none"


def test_what_code_names_counts_more_and_a_lock_that_names_all_is_installed_upon_them() -> None:
    default = DefaultImage(
        image=StoredImage(id="i"),
        lines=("--pre", "Large", "usual<2"),
        lock=f"large==1.0 {HASH}\nusual==1.0 {HASH}\n",
    )
    assert default.left_beside(Requirements(lines=("large==2",))) == ["--pre", "usual<2"]
    other = HASH.replace("a" * 64, "b" * 64)
    for lock in (
        default.lock,
        f"large==1.0 {HASH} {other}\nown==1 {HASH}\nusual==1.0 {HASH}\n",
        f"large==2.0 {other}\nusual==1.0 {HASH}\n",
    ):
        assert default.takes(lock)
    for lock in (f"large==1.0 {HASH}\n", default.lock.replace(HASH, other), "none"):
        assert not default.takes(lock)
    unknown = DefaultImage(image=default.image, lines=default.lines, lock="")
    assert not unknown.takes(default.lock)
