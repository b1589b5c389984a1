"""Settings of any program: from a file and the environment, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
import pytest

from nsml.common.settings import SettingsError, read_settings


class Kind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    folder: Path
    other: Path | None = None
    count: int = 1
    names: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    share: float | None = None
    is_on: bool = False
    mode: Literal["a", "b"] = "a"

    def __post_init__(self) -> None:
        if self.share is not None and self.share > 1:
            raise ValueError("share: 0 to 1")


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
    with pytest.raises(SettingsError, match=r"s\.site\.toml, line 1: .*'counts'.*'count'"):
        read(tmp_path / "s.toml", text)
    site.write_text("count = \n")
    with pytest.raises(SettingsError, match=r"s\.site\.toml is not TOML"):
        read(tmp_path / "s.toml", text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("folder = ", 's.toml is not TOML: Invalid value (at end of document); a text needs quotes: NAME = "TEXT"'),
        ('folder = "d"\nat = 1.2.3.4:5', 'column 9); a text needs quotes: NAME = "TEXT"'),
        ('folder = "d"\nfolder = "e"', "s.toml is not TOML: Cannot overwrite a value (at end of document)"),
        ("", 's.toml: folder is missing; add: folder = "/PATH"'),
        ("folder = 5", 's.toml, line 1: folder must be a text in quotes, such as "/PATH"'),
        ('folder = "d"\n\nzzz = 1', "s.toml, line 3: unknown setting 'zzz'"),
        ('folder = "d"\ncuont = 1', "s.toml, line 2: unknown setting 'cuont'; did you mean 'count'?"),
        ('[agent]\nfolder = "d"', "line 1: there is no table 'agent': settings stand at the top of the file, without tables"),
        ('folder = "d"\ncount = "x"', "s.toml, line 2: count must be a whole number, such as 1"),
        ('folder = "d"\ncount = ' + "9" * 400, f"s.toml, line 2: count must be {2**63 - 1} at most"),
        ('folder = "d"\nshare = "x"', "s.toml, line 2: share must be a number, such as 1.5"),
        ('folder = "d"\nnames = "x"', 's.toml, line 2: names must be a list, such as ["TEXT"]'),
        ('folder = "d"\nports = ["x"]', "s.toml, line 2: ports must be a list, such as [1]"),
        ('folder = "d"\nis_on = "yes"', "s.toml, line 2: is_on must be true or false"),
        ('folder = "d"\nmode = "c"', 's.toml, line 2: mode must be one of "a", "b"'),
        ('folder = "d"\nshare = 5.0', "s.toml, line 2: share: 0 to 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_named_with_its_line_and_the_right_form(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        read(tmp_path / "s.toml", text)
    assert str(caught.value).endswith(said)


def test_a_wrong_variable_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^P_COUNT in the environment: count must be a whole"):
        read(tmp_path / "s.toml", 'folder = "d"\n', P_COUNT="x")
    with pytest.raises(SettingsError, match=r"^P_SHARE in the environment: share: 0 to 1"):
        read(tmp_path / "s.toml", 'folder = "d"\nshare = 0.5', P_SHARE="5")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read"):
        read_settings(Kind, tmp_path / "none.toml", {}, prefix="P_")
