"""The code of two sessions: which files differ, in which lines, and what is not compared."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml.common.text import visible
from nsml.content.digests import digest_of
from nsml.content.manifest import ChunkRef, Entry, build
from nsml.view import code

NAMES = ("kim/mnist/1", "kim/mnist/2")


def entry(path, data, mode=0o644):
    refs = (ChunkRef(digest_of(data), len(data)),) if data else ()
    return Entry(path=path, mode=mode, size=len(data), chunks=refs)


def tree(**files):
    return build([entry(path, data) for path, data in files.items()])


def changed(old, new, path="a.py"):
    pair = entry(path, old), entry(path, new)
    return code.compared(code.File(path=path, old=pair[0], new=pair[1]), old, new, NAMES)


def test_files_that_differ_by_name():
    old, new = tree(a=b"1", b=b"2", c=b"3"), tree(b=b"2", c=b"4", d=b"5")
    found = code.differing(old, new)
    assert [(one.path, one.change) for one in found] == [
        ("a", "removed"),
        ("c", "changed"),
        ("d", "added"),
    ]
    assert code.differing(old, old) == []
    assert {one.change for one in code.differing(None, new)} == {code.Change.ADDED}


def test_lines_of_a_file():
    one = changed(b"import os\nx = 1\n", b"import os\nx = 2\ny = 3")
    assert one.lines == (
        "--- a.py\tkim/mnist/1",
        "+++ a.py\tkim/mnist/2",
        "@@ -1,2 +1,3 @@",
        " import os",
        "-x = 1",
        "+x = 2",
        "+y = 3",
        "\\ No newline at end of file",
    )
    assert (one.added, one.removed) == (2, 1)
    assert [code.colour_of(line) for line in one.lines[:6]] == ["", "", "cyan", "", "red", "green"]
    assert code.total_text([one], 1) == (
        "1 file differs: 2 lines added, 1 removed; 1 file the same"
    )


def test_a_file_that_is_not_in_both():
    made = entry("n.py", b"x\n")
    one = code.compared(code.File(path="n.py", old=None, new=made), b"", b"x\n", NAMES)
    assert one.lines[:2] == ("--- /dev/null\tkim/mnist/1", "+++ n.py\tkim/mnist/2")
    empty = code.compared(code.File(path="e", old=entry("e", b""), new=None), b"", b"", NAMES)
    assert code.text_of(empty) == ["e: removed, empty"]


@pytest.mark.parametrize(
    ("new", "note"),
    [
        (b"\0binary", "no text: 3 Bytes and 7 Bytes"),
        (b"\xff\xfe", "no text: 3 Bytes and 2 Bytes"),
        (b"\n" * (code.MOST_LINES + 1), "over 20,000 lines: 3 Bytes and 20.0 kB"),
    ],
)
def test_what_is_not_compared_line_by_line(new, note):
    one = changed(b"old", new)
    assert (one.lines, one.note) == ((), note)
    assert code.text_of(one) == [f"a.py: changed, {note}"]


def test_bytes_that_are_read_are_bounded():
    large = dataclasses.replace(entry("l", b"x"), size=code.MOST_BYTES + 1)
    most = dataclasses.replace(entry("m", b"x"), size=code.MOST_BYTES)
    files = [code.File(path="l", old=None, new=large), code.File(path="l2", old=large, new=None)]
    files += [code.File(path=f"m{number}", old=most, new=None) for number in range(40)]
    assert len(code.readable(files)) == code.MOST_IN_ALL // code.MOST_BYTES
    assert code.text_of(code.unread(files[0])) == [
        "l: added, too large to compare its lines: 1.0 MB"
    ]


def test_files_that_are_too_different_to_be_compared_soon_are_said_to_be(monkeypatch):
    monkeypatch.setattr(code, "MOST_WORK", 1_000_000)
    lines = [b"%d\n" % (number % 100) for number in range(code.MOST_LINES)]
    old, new = b"".join(lines), b"".join(reversed(lines))
    one = changed(old, new)
    assert one.note.startswith("too different to compare its lines: ")
    assert one.lines == ()
    # A large file with some other lines is none of them.
    lines = [b"%d\n" % number for number in range(code.MOST_LINES)]
    other = [b"other\n" if number % 5_000 == 7 else line for number, line in enumerate(lines)]
    one = changed(b"".join(lines), b"".join(other))
    assert (one.added, one.removed, one.note) == (4, 4, "")


def test_the_work_on_all_files_is_bounded_together(monkeypatch):
    monkeypatch.setattr(code, "MOST_WORK_IN_ALL", 100)
    texts = [b"1\n2\n", b"1\n3\n"]
    files = [
        code.File(path=f"{number}", old=entry(f"{number}", texts[0]), new=entry("n", texts[1]))
        for number in range(40)
    ]
    found = code.all_compared(files, [(texts[0], texts[1])] * 40, NAMES)
    assert found[0].added == 1
    assert found[-1].note.startswith("too different")


def test_another_mode_alone_is_said_and_not_read():
    file = code.File(path="run.sh", old=entry("run.sh", b"x"), new=entry("run.sh", b"x", 0o755))
    assert code.readable([file]) == []
    assert code.text_of(code.unread(file)) == ["run.sh: changed, mode 0644 -> 0755"]
    assert code.record(code.unread(file), has_lines=False)["note"] == "mode 0644 -> 0755"


TEXT = st.text(alphabet="ab\n\r\t\x0b\x0c\x1b\u2028\u202e\x85", max_size=40)


@given(TEXT, TEXT)
def test_no_line_does_anything_to_a_terminal(old, new):
    one = changed(old.encode(), new.encode(), path="\x1b[2Ja.py")
    for line in code.text_of(one):
        assert visible(line.replace("\t", "")) == line.replace("\t", "")
    assert (one.lines == ()) is (old == new)
