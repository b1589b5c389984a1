"""Names that programs give to checkpoints, metrics and media: different ones stay different, for every store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml._checkpoints import escape
from nsml._path_text import name_text, path_text, recorded_name
from nsml._session import Session
from tests.unit.nsml.test_sdk_spool import read

NAMES = (
    *("caf\udce9", "caf\udcea", "caf?", "caf\ufffd", "caf\\xe9", "caf\\x5cxe9", "café"),
    *("\ud800", "\\ud800", "\udced\udca0\udc80", "\\", "\\\\", "a\\b", "C:\\x", "\\x", "\\xe"),
    *("a\0b", "a\ufffdb", "a\nb", "a b", "a\x1b[2Jb", "a\u202eb", "a\x85b", "\\n"),
    *("n" * 600, "n" * 601, "é" * 300, "é" * 301, "\udce9" * 200, "\udce9" * 199 + "\udcea"),
)
METRICS = tuple(name for name in NAMES if len(name_text(name)) <= 512)


@given(st.text(alphabet=st.characters(codec=None)), st.text(alphabet=st.characters(codec=None)))
def test_different_names_have_different_texts(one: str, other: str) -> None:
    texts = [name_text(one), name_text(other)]
    assert (one == other) == (texts[0] == texts[1])
    for text in texts:
        text.encode()
        assert "\0" not in text
        assert recorded_name(text) == text


@given(st.binary().filter(lambda name: b"\\" not in name and b"__" not in name))
def test_the_name_of_a_file_is_its_path_as_text(name: bytes) -> None:
    assert name_text(os.fsdecode(name)) == path_text(os.fsdecode(name))


def test_each_checkpoint_is_saved_and_loaded_under_its_own_name(tmp_path: Path) -> None:
    session = Session(str(tmp_path), "anna/digits/3")
    for number, name in enumerate(NAMES):
        session.save(name, lambda folder, n=number: Path(folder, "w").write_text(str(n)))
    for number, name in enumerate(NAMES):
        found: list[str] = []
        session.load(name, lambda folder, found=found: found.append(Path(folder, "w").read_text()))
        assert found == [str(number)], name
    names = [one["name"] for one in read(tmp_path / "spool/1.records")]
    assert len({*names}) == len({*map(escape, names)}) == len(NAMES)
    assert all(0 < len(name.encode()) <= 512 for name in names)


def test_a_name_is_resumed_from_as_it_is_recorded_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(str(tmp_path), "anna/digits/3")
    session.save("caf\udce9", lambda folder: Path(folder, "w").write_text("it"))
    loaded: list[str] = []

    def load(folder: str) -> None:
        loaded.append(Path(folder, "w").read_text())

    monkeypatch.setenv("NSML_RESUME", "caf\\xe9")
    Session(str(tmp_path), "anna/digits/3").bind(save=load, load=load)
    monkeypatch.delenv("NSML_RESUME")
    monkeypatch.setattr("sys.argv", ["main.py", "--iteration", "caf\\xe9"])
    again = Session(str(tmp_path), "anna/digits/3")
    again.bind(save=load, load=load)
    again.paused()
    assert loaded == ["it", "it"]


def test_each_metric_and_each_picture_has_its_own_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(str(tmp_path), "anna/digits/3")
    session.reporter.report(**dict.fromkeys(METRICS, 1.0))
    session.reporter.report({"in": [dict.fromkeys(METRICS, 1.0)]}, nested=dict.fromkeys(METRICS, 1))
    for name in METRICS:
        session.media.text(name, "some")
    first, second, *media = read(tmp_path / "spool/1.records")
    assert len(first["values"]) == len({one["name"] for one in media}) == len(METRICS)
    assert len(second["values"]["in"][0]) == len(METRICS)
    assert len(second["values"]) == len(METRICS) + 1 - sum(
        len(name_text(f"nested/{name}")) > 512 for name in METRICS
    )
    summary = session.reporter.last()
    assert all(not one.startswith("caf?") or one == "caf?" for one in summary)


def test_each_metric_whose_name_is_too_long_is_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(str(tmp_path), "anna/digits/3")
    for _ in range(3):
        session.reporter.report(loss=1.0, **{"a" * 600: 1.0, "b" * 600: 1.0})
    told = capsys.readouterr().err
    assert told.count("aaa...' is not recorded") == told.count("bbb...' is not recorded") == 1
