"""How much disk is taken: against what `du` would say, whatever a program made there."""

from __future__ import annotations

import os
from pathlib import Path

from nodeagent.shim.disk_usage import Measurement

MIB = 1 << 20


def measured(folder: Path) -> int:
    walk = Measurement(str(folder), ("app", "nothing"), ("output", "nothing"))
    while not walk.done:
        walk.advance(0.001)
    return walk.occupied_bytes


def within(found: int, wanted: int) -> bool:
    return wanted <= found < wanted + MIB // 2


def test_files_folders_and_output_count_once(tmp_path: Path) -> None:
    below = tmp_path / "app" / "a" / "b"
    below.mkdir(parents=True)
    (below / "big").write_bytes(os.urandom(MIB))
    os.link(below / "big", below / "again")
    (tmp_path / "output").write_bytes(os.urandom(MIB))
    assert within(measured(tmp_path), 2 * MIB)


def test_no_link_is_followed_and_holes_take_nothing(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "big").write_bytes(os.urandom(MIB))
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "app" / "round").symlink_to(".")
    (tmp_path / "output").symlink_to(tmp_path / "elsewhere" / "big")
    with (tmp_path / "app" / "hole").open("wb") as file:
        file.truncate(1 << 40)
    assert within(measured(tmp_path), 0)


def test_what_lies_deeper_than_any_path_counts(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    here = os.open(tmp_path / "app", os.O_RDONLY)
    for _ in range(400):
        os.mkdir("a" * 20, dir_fd=here)
        below = os.open("a" * 20, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    file = os.open("big", os.O_WRONLY | os.O_CREAT, dir_fd=here)
    os.write(file, os.urandom(MIB))
    os.close(file)
    os.close(here)
    assert measured(tmp_path) >= MIB


def test_a_piece_of_a_walk_is_short_however_many_files_there_are(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    for number in range(3000):
        (tmp_path / "app" / str(number)).touch()
    walk = Measurement(str(tmp_path), ("app",), ())
    walk.advance(0.0)
    assert not walk.done


def test_a_file_that_goes_meanwhile_hides_none_behind_it(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    for number in range(20):
        (tmp_path / "app" / str(number)).write_bytes(os.urandom(MIB // 4))
    walk = Measurement(str(tmp_path), ("app",), ())
    walk.advance(0.0)  # its names are read by now
    for number in range(0, 20, 2):
        (tmp_path / "app" / str(number)).unlink()
    while not walk.done:
        walk.advance(1.0)
    assert 10 * MIB // 4 <= walk.occupied_bytes < 12 * MIB // 4


def test_empty_files_and_links_count_for_the_inodes_that_they_take(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    for number in range(200):
        (tmp_path / "app" / f"e{number}").touch()
        (tmp_path / "app" / f"l{number}").symlink_to("nowhere")
    walk = Measurement(str(tmp_path), ("app",), ())
    while not walk.done:
        walk.advance(1.0)
    assert walk.file_count == 401
    assert walk.occupied_bytes >= 400 * 4096
