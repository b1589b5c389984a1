"""Text files as other programs write them."""

from __future__ import annotations

import msgspec
import pytest

from nsml.client import contexts
from nsml.common.settings import read_settings
from nsml.common.text_files import decoded, lines_of
from nsml.spec.variables import FileRefused, parse_file

ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-32"]


class Kind(msgspec.Struct, frozen=True):
    name: str


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_reader_takes_what_editors_on_windows_write(tmp_path, encoding):
    file = tmp_path / "s.toml"
    file.write_bytes('name = "두"\r\n'.encode(encoding))
    assert read_settings(Kind, file, {}, prefix="P_") == Kind(name="두")
    config = tmp_path / "config.toml"
    config.write_bytes('[contexts.a]\r\nserver = "gpu.lab:1"\r\n'.encode(encoding))
    environ = {"NSML_CONFIG_DIR": str(tmp_path)}
    assert contexts.load(environ).contexts["a"].server == "gpu.lab:1"
    assert parse_file('A=1\r\nB="두"\r\n'.encode(encoding)) == {"A": "1", "B": "두"}


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
def test_a_damaged_or_unmarked_file_is_refused_by_name(encoding):
    with pytest.raises(FileRefused):
        parse_file("A=1\n".encode(encoding))
    with pytest.raises(FileRefused, match="UTF"):
        parse_file("A=1\n".encode("utf-16")[:-1])


def test_bytes_that_are_not_utf8_are_kept_as_in_names():
    assert decoded(b"caf\xe9") == "caf\udce9"
    assert decoded(b"\xef\xbb\xbfcaf\xe9", "replace") == "caf\ufffd"


def test_only_line_ends_end_lines():
    text = "a\r\nb\rc\n\nd\x0ce\x85f\u2028g\n"
    assert lines_of(text) == ["a", "b", "c", "", "d\x0ce\x85f\u2028g"]
    assert lines_of("") == []
