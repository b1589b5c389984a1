"""What is sealed opens with the same key in its own place, and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.access.vault import KEY_FILE, NotOpened, make_vault, open_vault


@given(st.binary(max_size=100), st.text(max_size=8), st.text(max_size=8))
def test_what_is_sealed_opens_in_its_place(value: bytes, owner: str, name: str) -> None:
    vault = make_vault(os.urandom)
    sealed = vault.seal(value, owner=owner, name=name)
    assert vault.open(sealed, owner=owner, name=name) == value
    assert len(value) < 4 or value not in sealed
    assert vault.seal(value, owner=owner, name=name) != sealed


@pytest.mark.parametrize(("owner", "name"), [("lee", "A"), ("kim", "B"), ("kim\0A", ""), ("", "A")])
def test_not_in_another_place(owner: str, name: str) -> None:
    vault = make_vault(os.urandom)
    sealed = vault.seal(b"s3cret", owner="kim", name="A")
    with pytest.raises(NotOpened):
        vault.open(sealed, owner=owner, name=name)


def test_not_with_another_key_and_not_damaged() -> None:
    vault, other = make_vault(os.urandom), make_vault(os.urandom)
    sealed = vault.seal(b"s3cret", owner="kim", name="A")
    assert vault.key_id != other.key_id
    with pytest.raises(NotOpened):
        other.open(sealed, owner="kim", name="A")
    for place in range(len(sealed)):
        torn = bytes([*sealed[:place], sealed[place] ^ 1, *sealed[place + 1 :]])
        with pytest.raises(NotOpened):
            vault.open(torn, owner="kim", name="A")
    for length in range(len(sealed)):
        with pytest.raises(NotOpened):
            vault.open(sealed[:length], owner="kim", name="A")


def test_the_key_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    first = open_vault(tmp_path, os.urandom)
    path = tmp_path / KEY_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    sealed = first.seal(b"s3cret", owner="kim", name="A")
    again = open_vault(tmp_path, os.urandom)
    assert again.key_id == first.key_id
    assert again.open(sealed, owner="kim", name="A") == b"s3cret"
    assert path.read_text().strip() not in repr(vars(again))
    path.chmod(0o640)
    with pytest.raises(PermissionError):
        open_vault(tmp_path, os.urandom)


def test_the_first_key_seals_and_all_of_them_open(tmp_path: Path) -> None:
    before = open_vault(tmp_path, os.urandom)
    sealed = before.seal(b"s3cret", owner="kim", name="A")
    path = tmp_path / KEY_FILE
    path.write_text(f"{os.urandom(32).hex()}\n{path.read_text()}")
    both = open_vault(tmp_path, os.urandom)
    assert (before.has_older_keys, both.has_older_keys) == (False, True)
    assert both.key_id != before.key_id
    assert both.open(sealed, owner="kim", name="A") == b"s3cret"
    anew = both.seal(b"s3cret", owner="kim", name="A")
    with pytest.raises(NotOpened):
        before.open(anew, owner="kim", name="A")
    path.write_text(path.read_text().splitlines()[0])
    after = open_vault(tmp_path, os.urandom)
    assert after.open(anew, owner="kim", name="A") == b"s3cret"
    with pytest.raises(NotOpened):
        after.open(sealed, owner="kim", name="A")


@pytest.mark.parametrize(
    "content", ["", "\n", "00", "zz" * 32, "00" * 33, "00" * 32 + "\n" + "00" * 31]
)
def test_what_is_no_key_is_refused_not_replaced(tmp_path: Path, content: str) -> None:
    path = tmp_path / KEY_FILE
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(ValueError, match=r"secrets\.key"):
        open_vault(tmp_path, os.urandom)
    assert path.read_text() == content
