"""`nsml cp`: which side is where, what is said, and what it ends with."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest

from nsml.client import files
from nsml.copying.messages import Entry, entries_message, message

EVIL = "\x1b[2Jx\n\u202e"
MEGABYTE = 1 << 20


@pytest.fixture
def inside(tmp_path, state):
    """The files of the session."""
    state.files.folder = tmp_path / "inside"
    (state.files.folder / "d/sub").mkdir(parents=True)
    (state.files.folder / "d/one").write_bytes(b"one")
    (state.files.folder / "d/sub/two").write_bytes(b"two")
    return state.files.folder


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch, everything):
    """The local folder, in which it is called."""
    made = tmp_path / "here"
    made.mkdir()
    monkeypatch.chdir(made)
    return made


def test_out_and_in(nsml, state, inside, here):
    out = nsml("cp", "kim/mnist/1:d", "out")
    assert (out.stdout, out.stderr) == ("", "copied 2 files (6 Bytes)\n")
    assert (here / "out/sub/two").read_bytes() == b"two"
    again = nsml("cp", "@last:0:d/.", "out")
    assert again.stderr == "copied 0 files (0 Bytes), 2 were there already\n"
    back = nsml("cp", "./out", "kim/mnist/1:")
    assert back.stderr == "copied 2 files (6 Bytes)\n"
    assert (inside / "out/sub/two").read_bytes() == b"two"
    assert [(one.path, one.sends, one.name) for one in state.files.requests] == [
        (b"d", True, b""),
        (b"d/.", True, b""),
        (b".", False, b"out"),
    ]
    assert nsml("cp", "-q", "kim/mnist/1:d/one", ".").stderr == ""
    assert (here / "one").read_bytes() == b"one"


@pytest.mark.parametrize("flag", ["-r", "-R", "-a", "--recursive", "-aR"])
def test_what_cp_and_scp_need_for_folders_is_taken(nsml, inside, here, flag):
    assert nsml("cp", flag, "kim/mnist/1:d", "out").stderr == "copied 2 files (6 Bytes)\n"
    nsml("cp", "./out", "kim/mnist/1:", flag)
    assert (inside / "out/sub/two").read_bytes() == b"two"


def test_json_says_what_was_copied(nsml, inside, here):
    os.mkfifo(inside / "d" / os.fsdecode(b"p\xff"))
    (here / "out").mkdir()
    (inside / "d/sub").rename(here / "out/sub")
    partly = nsml("cp", "-j", "kim/mnist/1:d/.", "out", check=False)
    assert partly.code == 9
    assert json.loads(partly.stdout) == {
        "schema_version": 1,
        "source": "kim/mnist/1:d/.",
        "target": "out",
        "files": 1,
        "bytes": 3,
        "skipped": 0,
        "failed": 1,
        "left_out": [{"path": r"p\xff", "why": "a pipe"}],
        "elapsed_s": 0.0,
    }
    whole = json.loads(nsml("cp", "./out", "kim/mnist/1:", "-q", NSML_OUTPUT="json").stdout)
    assert (whole["files"], whole["bytes"], whole["left_out"]) == (2, 6, [])
    missing = nsml("cp", "-j", "kim/mnist/1:no-such", "out", check=False)
    assert (missing.code, missing.stdout) == (5, "")


@pytest.mark.parametrize("pattern", ["*.pt", "epoch-?", "[ab]", "d/*"])
def test_who_writes_a_pattern_is_told_that_it_is_none(nsml, state, inside, here, pattern):
    result = nsml("cp", f"@last:{pattern}", ".", check=False)
    assert result.code == 5
    assert "patterns are not expanded in the session" in result.stderr
    (inside / "d/a*[b]?").write_bytes(b"x")
    assert nsml("cp", "@last:d/a*[b]?", ".").code == 0


def test_nobody_makes_a_folder_that_is_called_as_a_home_is_written(nsml, state, inside, here):
    for words in (["@last:~/x", "."], [".", "@last:~/"], [".", "@last:1:~"]):
        result = nsml("cp", *words, check=False)
        assert (result.code, result.stdout) == (2, "")
        assert "~ is not expanded in the session" in result.stderr
        assert "/tmp" in result.stderr
    assert state.files.requests == []
    (inside / "~").mkdir()
    (inside / "~/x").write_bytes(b"x")
    assert nsml("cp", "@last:./~/x", ".").code == 0


def test_the_rank(nsml, state, inside):
    nsml("cp", "kim/mnist/1:2:d", "out")
    nsml("cp", "kim/mnist/1:./2:d", "out", check=False)
    assert [one.rank for one in state.files.targets] == [2, 0]
    assert state.files.requests[1].path == b"./2:d"


@pytest.mark.parametrize(
    "words", [["a", "b"], ["@last:a", "@last:b"], ["./a:b", "c"], ["/a:b", "c"], ["@last:a"], [":a", "b"]]
)  # fmt: skip
def test_one_side_is_in_a_session(nsml, state, words):
    result = nsml("cp", *words, check=False)
    assert (result.code, result.stdout) == (2, "")
    assert state.files.requests == []


def test_a_session_without_a_path_is_no_local_file(nsml, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in (["@last:main.py", "@last"], ["s" + "a" * 16, "@last:"]):
        result = nsml("cp", *words, check=False)
        assert result.code == 2
        assert "names a session and no path" in result.stderr
    result = nsml("cp", "one", "two", "@last:", check=False)
    assert (result.code, "one source at a time" in result.stderr) == (2, True)


def test_who_means_a_local_name_with_a_colon_is_told_how_to_write_it(nsml):
    result = nsml("cp", "a:b", "@last:", check=False)
    assert result.code == 2
    assert "./NAME" in result.stderr


def test_what_is_left_out_is_named_and_ends_with_9(nsml, inside, here):
    os.mkfifo(inside / "d" / os.fsdecode(f"p{EVIL}".encode()))
    (inside / "d/out").symlink_to("/etc")
    result = nsml("cp", "@last:d", "out", check=False)
    assert (result.code, result.stdout) == (9, "")
    assert "copied 2 files" in result.stderr
    assert "left out: out: a link that leads out of what is copied\n" in result.stderr
    assert "a pipe\n" in result.stderr
    assert "2 things of it were not copied" in result.stderr
    assert not {"\x1b", "\u202e"} & set(result.stderr)
    quiet = nsml("cp", "-q", "@last:d", "out", check=False)
    assert quiet.code == 9
    assert "a pipe" in quiet.stderr
    os.mkfifo(inside / "d/sub/pipe")
    (inside / "d/sub/two").unlink()
    nothing = nsml("cp", "@last:d/sub", "nothing", check=False)
    assert nothing.code == 1
    assert (here / "nothing").is_dir()


def test_what_is_not_there_or_not_allowed(nsml, state, inside, here):
    missing = nsml("cp", "@last:no-such", "out", check=False)
    assert (missing.code, missing.stdout) == (5, "")
    assert "'no-such' in the session cannot be copied" in missing.stderr
    assert "No such file or directory" in missing.stderr
    nowhere = nsml("cp", "@last:d", "no/such", check=False)
    assert (nowhere.code, nowhere.stdout) == (1, "")
    assert "'no/such' cannot be written" in nowhere.stderr
    unread = nsml("cp", "no-such", "@last:", check=False)
    assert (unread.code, unread.stdout) == (1, "")
    assert "'no-such' cannot be read" in unread.stderr
    state.files.refusal = "its program is just beginning"
    refused = nsml("cp", "@last:d", "out", check=False)
    assert (refused.code, refused.stdout) == (6, "")
    assert "its program is just beginning" in refused.stderr
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("is_out", [True, False])
def test_a_broken_copy_says_so_and_goes_on(nsml, state, inside, here, is_out):
    source = inside / "big" if is_out else here / "big"
    source.write_bytes(os.urandom(4 * MEGABYTE))
    words = ["@last:big", "out"] if is_out else ["big", "@last:out"]
    state.files.breaks_after = 3 * MEGABYTE
    broken = nsml("cp", *words, check=False)
    assert (broken.code, broken.stdout) == (3, "")
    assert "the same command goes on" in broken.stderr
    state.files.breaks_after = float("inf")
    whole = nsml("cp", *words)
    assert re.search(
        r"^copied 1 file \(1\.\d MB; [23]\.\d MB were there\)$", whole.stderr, re.MULTILINE
    )
    assert ((here if is_out else inside) / "out").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("is_out", [True, False])
def test_ctrl_c_says_how_far_it_came(nsml, inside, here, monkeypatch, is_out):
    source = inside / "big" if is_out else here / "big"
    source.write_bytes(os.urandom(4 * MEGABYTE))
    words = ["@last:big", "out"] if is_out else ["big", "@last:out"]
    carry_out = files._carry_out

    async def interrupted(tunnel, side, rest, progress):
        def heard(done, total):
            progress(done, total)
            if done >= 2 * MEGABYTE:
                signal.raise_signal(signal.SIGINT)

        await carry_out(tunnel, side, rest, heard)

    with monkeypatch.context() as patched:
        patched.setattr(files, "_carry_out", interrupted)
        left = nsml("cp", *words, check=False)
    assert (left.code, left.stdout) == (130, "")
    goes_on = "the same command goes on where this one stopped"
    assert re.fullmatch(rf"stopped at 2\.\d MB of 4\.2 MB; {goes_on}\n\n", left.stderr)


def test_ctrl_c_before_anything_was_copied(nsml, inside, monkeypatch):
    async def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "begun", interrupted)
    left = nsml("cp", "@last:d", "out", check=False)
    assert (left.code, left.stderr) == (130, "stopped before anything was copied\n\n")


def test_why_the_other_side_stopped_in_the_middle_is_said(nsml, inside, here):
    (here / "d").write_bytes(b"x")
    (inside / "file").write_bytes(b"")
    result = nsml("cp", "d", "@last:file/x", check=False)
    assert result.code == 1
    assert "'file/x' in the session cannot be written" in result.stderr
    assert "Not a directory" in result.stderr


def test_a_single_file_that_is_left_out_is_named(nsml, inside, here):
    result = nsml("cp", "/proc/version", "@last:version", check=False)
    assert result.code == 1
    assert "left out: /proc/version: the kernel makes it up" in result.stderr


@pytest.mark.parametrize(
    "said",
    [
        b"\xff" * 8,
        message(b"B", [True, 0]) + entries_message([Entry(b"a", "file")]).replace(b'"a"', b'"/"'),
        message(b"R", [EVIL, "ENOENT"]),
        message(b"R", [EVIL, EVIL]),
        message(b"B", [True, 0]),
    ],
)
def test_a_hostile_session_reaches_neither_disk_nor_terminal(nsml, state, here, said):
    state.files.said = said
    result = nsml("cp", "@last:x", "out", check=False)
    assert result.code in {1, 3, 5}
    assert not {"\x1b", "\u202e"} & set(result.stderr)
    assert not (here / "out").exists()


def test_progress_on_a_terminal(nsml, inside):
    (inside / "big").write_bytes(b"x" * 4 * MEGABYTE)
    shown = nsml("cp", "@last:big", "out", terminal=True)
    assert "100% of 4.2 MB" in shown.stderr
