"""Who may use images that were pulled with a login."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.environments.image_rights import ASKED_AGAIN_AFTER_S, ImageRights

ID = f"sha256:{'a' * 64}"


class Clock:
    now = 1e9

    def __call__(self) -> float:
        return self.now


def test_a_private_image_is_of_those_whose_login_was_given_it(tmp_path: Path) -> None:
    clock = Clock()
    rights = ImageRights(tmp_path, clock)
    assert not rights.is_private(ID)
    rights.grant(ID, "u.kim", 7)
    assert rights.is_private(ID)
    assert rights.private_ids() == {ID}
    assert rights.has(ID, "u.kim", 7)
    assert not rights.has(ID, "u.kim", 8), "another login"
    assert not rights.has(ID, "u.kim", None), "logged out"
    assert not rights.has(ID, "u.lee", 7)
    clock.now += ASKED_AGAIN_AFTER_S
    assert not rights.has(ID, "u.kim", 7), "its registry is asked again"
    rights.grant(ID, "u.kim", 7)
    clock.now -= 60
    assert not rights.has(ID, "u.kim", 7), "a clock that was set back makes nothing last"


def test_an_image_that_its_registry_gives_without_a_login_is_everybodys(tmp_path: Path) -> None:
    rights = ImageRights(tmp_path)
    rights.grant(ID, "u.kim", 7)
    rights.grant(ID, "u.lee", None)
    assert not rights.is_private(ID)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"users": 3}'])
def test_what_cannot_be_read_gives_nobody_a_right(tmp_path: Path, content: bytes) -> None:
    rights = ImageRights(tmp_path)
    rights.grant(ID, "u.kim", 7)
    next(tmp_path.glob("*.rights")).write_bytes(content)
    assert rights.is_private(ID)
    assert not rights.has(ID, "u.kim", 7)
