"""Who may use images that were pulled with a login."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.environments.image_rights import ASKED_AGAIN_AFTER_S, ImageRights

ID = f"sha256:{'a' * 64}"
NAME = "registry.lab/team/model"


class Clock:
    now = 1e9

    def __call__(self) -> float:
        return self.now


def test_a_private_image_is_of_those_whose_login_was_given_it(tmp_path: Path) -> None:
    clock = Clock()
    rights = ImageRights(tmp_path, clock)
    assert not rights.is_private(ID, NAME)
    rights.grant(ID, NAME, "u.kim", 7)
    assert rights.is_private(ID, NAME)
    assert rights.private_images() == {ID: []}
    assert rights.has(ID, "u.kim", 7)
    assert not rights.has(ID, "u.kim", 8), "another login"
    assert not rights.has(ID, "u.kim", None), "logged out"
    assert not rights.has(ID, "u.lee", 7)
    clock.now += ASKED_AGAIN_AFTER_S
    assert not rights.has(ID, "u.kim", 7), "its registry is asked again"
    rights.grant(ID, NAME, "u.kim", 7)
    clock.now -= 60
    assert not rights.has(ID, "u.kim", 7), "a clock that was set back makes nothing last"


def test_an_image_that_its_registry_gives_without_a_login_is_everybodys(tmp_path: Path) -> None:
    rights = ImageRights(tmp_path)
    rights.grant(ID, NAME, "u.kim", 7)
    rights.grant(ID, NAME, "u.lee", None)
    assert not rights.is_private(ID, NAME)


def test_a_repository_makes_an_image_everybodys_under_names_of_its_own_alone(
    tmp_path: Path,
) -> None:
    rights, theirs = ImageRights(tmp_path), "registry.rogue/copy"
    rights.grant(ID, NAME, "u.kim", 7)
    rights.grant(ID, theirs, "u.rogue", None)
    assert not rights.is_private(ID, theirs)
    assert rights.is_private(ID, NAME), "anybody can serve a copy of what describes it"
    assert not rights.has(ID, "u.lee", None)
    assert rights.has(ID, "u.kim", 7)
    assert rights.private_images() == {ID: [theirs]}


@pytest.mark.parametrize("content", [b"", b"[]", b'{"users": 3}'])
def test_what_cannot_be_read_gives_nobody_a_right(tmp_path: Path, content: bytes) -> None:
    rights = ImageRights(tmp_path)
    rights.grant(ID, NAME, "u.kim", 7)
    next(tmp_path.glob("*.rights")).write_bytes(content)
    assert rights.is_private(ID, NAME)
    assert not rights.has(ID, "u.kim", 7)
