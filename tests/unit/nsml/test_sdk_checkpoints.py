"""A checkpoint that has its name is on the disk, whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nsml._checkpoints import Checkpoints


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "checkpoints"
    synced: list[tuple[str, bool]] = []
    fsync = os.fsync

    def watched(fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        synced.append((path.relative_to(root).as_posix(), (root / "1-best").exists()))
        fsync(fd)

    monkeypatch.setattr("os.fsync", watched)
    draft = Checkpoints(str(root)).begin()
    model = Path(draft.model)
    (model / "layers").mkdir()
    (model / "weights").write_text("1")
    (model / "layers" / "first").write_text("2")
    draft.commit("best")
    before = {path for path, has_name in synced if not has_name}
    inside = {"model", "model/weights", "model/layers", "model/layers/first"}
    assert before == {".tmp-1", *(f".tmp-1/{path}" for path in inside)}
    assert [path for path, has_name in synced if has_name] == ["."]
