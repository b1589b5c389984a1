"""How files come to be in a folder."""

import os
import random

import pytest

from controlplane.objects import folder_files
from controlplane.objects.folder_files import open_folder
from nsml.common.clock import inline

PIECES = {
    "many small ones": [b"ab"] * (3 * os.sysconf("SC_IOV_MAX") + 1),
    "a flag before each": [
        one
        for seed in range(40)
        for one in (b"\0", memoryview(random.Random(seed).randbytes(100_000 + seed)))
    ],
    "one larger than a write": [random.Random(1).randbytes(5 << 20), b"", b"end"],
    "empty ones": [b"", b"a", b"", b"", b"b", b""],
    "none": [],
}


@pytest.mark.parametrize("is_short", [False, True], ids=["whole writes", "short writes"])
@pytest.mark.parametrize("what", PIECES)
async def test_a_file_has_all_of_its_pieces_in_order(tmp_path, monkeypatch, what, is_short):
    chance = random.Random(5)
    write = os.writev
    sizes = []

    def writev(opened, pieces):
        given = b"".join(pieces)
        sizes.append(len(given))
        if is_short:
            given = given[: chance.randint(len(given) // 2, len(given)) or 1]
        return write(opened, [given])

    monkeypatch.setattr(folder_files.os, "writev", writev)
    files = open_folder(tmp_path, inline)
    await files.put("packs/aa/b", PIECES[what])
    assert (tmp_path / "packs/aa/b").read_bytes() == b"".join(PIECES[what])
    largest = max(map(len, PIECES[what]), default=0)
    assert max(sizes, default=0) <= max(largest, folder_files._WRITE_BYTES)
    assert not any((tmp_path / "incoming").iterdir())
