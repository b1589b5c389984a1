"""Settings of any program: from a file and the environment, or refused by name."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from nsml.settings import SettingsError, read_settings


class Kind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    folder: Path
    other: Path | None = None
    count: int = 1
    names: tuple[str, ...] = ()


def read(file: Path, text: str, **environment: str) -> Kind:
    file.write_text(text)
    return read_settings(Kind, file, environment, prefix="P_")


def test_paths_are_meant_from_the_files_folder(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", "/home/kim")
    found = read(tmp_path / "s.toml", 'folder = "d"\nother = "~/x"\n')
    assert (found.folder, found.other) == (tmp_path / "d", Path("/home/kim/x"))
    assert read(tmp_path / "s.toml", 'folder = "/d"\n') == Kind(folder=Path("/d"))


def test_the_environment_overrides_and_separates_lists_by_commas(tmp_path: Path) -> None:
    text = 'folder = "/d"\ncount = 2\nnames = ["z"]\n'
    found = read(tmp_path / "s.toml", text, P_COUNT="3", P_NAMES="a,b", COUNT="4", P_OTHER="")
    assert found == Kind(folder=Path("/d"), count=3, names=("a", "b"))


def test_what_a_site_sets_stands_above_what_is_written_for_it(tmp_path: Path) -> None:
    site = tmp_path / "s.site.toml"
    site.write_text('count = 5\nnames = ["a"]\n')
    text = 'folder = "/d"\ncount = 2\nnames = ["z", "y"]\n'
    found = read(tmp_path / "s.toml", text, P_COUNT="7")
    assert found == Kind(folder=Path("/d"), count=7, names=("a",))
    site.write_text("counts = 5\n")
    with pytest.raises(SettingsError, match=r"s\.toml with s\.site\.toml: .*counts"):
        read(tmp_path / "s.toml", text)
    site.write_text("count = \n")
    with pytest.raises(SettingsError, match=r"s\.site\.toml is not TOML"):
        read(tmp_path / "s.toml", text)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("folder = ", "not TOML"),
        ("", "folder"),
        ("folder = 5", "folder"),
        ('folder = "d"\nmore = 1', "more"),
        ('folder = "d"\ncount = "x"', "count"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        read(tmp_path / "s.toml", text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read"):
        read_settings(Kind, tmp_path / "none.toml", {}, prefix="P_")
