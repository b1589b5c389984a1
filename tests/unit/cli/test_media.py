"""nsml media: what a session showed, as a list, in words and as files."""

import json

import pytest

from nsml.content.digests import digest_of
from nsml.content.manifest import ChunkRef, Entry, build
from nsml.v1 import media_pb2 as pb
from tests.unit.nsml.client.contract_server import EPOCH

NASTY = "a\x1b[2J/../../..//\x00b"


def show(state, session, name, kind, data, step=None, content_type="application/json", **given):
    file = f"{len(state.media.get(session.id, [])):064x}-1"
    chunk = digest_of(data)
    chunks = (ChunkRef(chunk, len(data)),) if data else ()
    manifest = build([Entry(path=file, mode=0o644, size=len(data), chunks=chunks)])
    state.blobs |= {chunk: data, manifest.digest: manifest.encode()}
    one = pb.Media(
        name=name,
        kind=kind,
        state="MEDIA_STATE_DURABLE",
        step=step,
        attempt=1,
        content_type=content_type,
        size_bytes=len(data),
        root=manifest.digest,
        file=file,
    )
    one.time.FromSeconds(EPOCH)
    one.MergeFrom(pb.Media(**given))
    state.media.setdefault(session.id, []).append(one)
    return one


@pytest.fixture
def session(state):
    return state.add("kim/mnist/1")


def test_nothing_was_shown(nsml, session):
    result = nsml("media", "@last", terminal=True)
    assert (result.stdout, result.stderr) == ("", "no media were reported\n")


def test_a_list_of_several_pages(nsml, state, session):
    for step in range(5):
        show(state, session, f"val/{step}", "image", b"x", step=step, content_type="image/png")
    items = json.loads(nsml("media", "@last", "-j").stdout)["items"]
    assert [(one["name"], one["step"], one["state"]) for one in items] == [
        (f"val/{step}", step, "DURABLE") for step in range(5)
    ]
    listed = nsml("media", "@last", "--from", "3", terminal=True).stdout
    assert "val/3" in listed
    assert "val/2" not in listed


def test_the_last_text_is_shown_and_obeys_nothing(nsml, state, session):
    show(state, session, "said", "text", b"old", step=1)
    show(state, session, "said", "text", b"new\x1b]0;t\x07\nline\xff", step=2)
    assert nsml("media", "@last", "said", terminal=True).stdout == "new␛]0;t␇\nline\ufffd\n"
    assert nsml("media", "@last", "said", "--step", "1", terminal=True).stdout == "old\n"


def test_a_histogram_and_a_table_in_words(nsml, state, session):
    show(state, session, "h", "histogram", b'{"edges":[0,1,2],"counts":[2,4]}')
    bars = nsml("media", "@last", "h", terminal=True).stdout.splitlines()
    assert [line.split()[0] for line in bars] == ["0", "1", "2"]
    assert bars[1].count("█") == 2 * bars[0].count("█")
    table = {"columns": ["a", "b\x1b"], "data": [[1, "x"], [None, 0.25]]}
    show(state, session, "t", "table", json.dumps(table).encode())
    assert nsml("media", "@last", "t", terminal=True).stdout.splitlines() == [
        "a  b␛",
        "-  ----",
        "1  x",
        "   0.25",
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[" * 100_000,
        b'{"edges":[0],"counts":[2,4]}',
        b'{"edges":["a","b"],"counts":[1]}',
        b'{"edges":[0,NaN],"counts":[1]}',
        b'{"edges":[0,1],"counts":[1' + b"0" * 400 + b"]}",
        b'{"columns":["a"],"data":[[1,2]]}',
    ],
)
@pytest.mark.parametrize("kind", ["histogram", "table"])
def test_what_is_not_what_it_says_is_refused(nsml, state, session, kind, data):
    show(state, session, "x", kind, data)
    result = nsml("media", "@last", "x", terminal=True, check=False)
    assert result.code == 1
    assert "cannot be shown" in result.stderr
    assert "--export" in result.stderr


def test_an_unknown_name_names_the_others(nsml, state, session):
    show(state, session, "val/loss", "text", b"x", step=3)
    result = nsml("media", "@last", "val/los", terminal=True, check=False)
    assert result.code == 5
    assert "val/loss" in result.stderr
    result = nsml("media", "@last", "val/loss", "--step", "4", terminal=True, check=False)
    assert result.code == 5
    assert "was not shown at that step" in result.stderr


def test_one_that_is_lost_says_why(nsml, state, session):
    show(state, session, "x", "text", b"x", why_lost="too\x1b large")
    state.media[session.id][0].root = ""
    state.media[session.id][0].state = pb.MEDIA_STATE_LOST
    result = nsml("media", "@last", "x", terminal=True)
    assert (result.stdout, result.stderr) == ("", "x, step -, lost: too␛ large\n")


def test_files_are_exported_once_and_below_the_folder(nsml, state, session, tmp_path):
    contents = {"a/b": b"one", NASTY: b"two", "x" * 500: b"three", "..": b"four"}
    for name, data in contents.items():
        show(state, session, name, "text", data, step=1.5, content_type="text/plain")
    show(state, session, "odd", "text", b"", content_type="../../etc/passwd")
    show(state, session, "away", "text", b"x")
    state.media[session.id][-1].root = ""
    target = tmp_path / "out"
    result = nsml("media", "@last", "--export", str(target))
    assert "1 are on their node still" in result.stderr
    written = [path for path in tmp_path.rglob("*") if path.is_file() and target in path.parents]
    assert sorted(path.read_bytes() for path in written) == sorted([*contents.values(), b""])
    assert len(result.stdout.splitlines()) == 5
    assert {path.suffix for path in written} == {".txt", ".bin"}
    again = nsml("media", "@last", "--export", str(target))
    assert "5 were there already" in again.stderr
    assert again.stdout == ""


def test_an_export_makes_one_folder_and_none_on_the_way(nsml, state, session, tmp_path):
    show(state, session, "a/b", "text", b"one", content_type="text/plain")
    refused = nsml("media", "@last", "--export", str(tmp_path / "no" / "out"), check=False)
    assert (refused.code, refused.stdout) == (5, "")
    assert f"mkdir -p {tmp_path / 'no'}" in refused.stderr
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("flag", ["-m", "--metric", "--match"])
def test_names_are_chosen_as_those_of_metrics_are(nsml, state, session, flag):
    for name in ("a/b", "c"):
        show(state, session, name, "text", b"one", content_type="text/plain")
    assert nsml("media", "@last", flag, "a/*", "-o", "name").stdout == "a/b\n"


def test_a_step_of_three_hundred_digits_has_a_file(nsml, state, session, tmp_path):
    show(state, session, "huge", "text", b"x", 1e300, "text/plain")
    [path] = nsml("media", "@last", "--export", tmp_path).stdout.splitlines()
    assert "step-1e+300-" in path
    assert nsml("media", "@last", "huge").stdout == "x\n"


def test_that_no_more_are_kept_is_said(nsml, state, session, tmp_path):
    for step in range(3):
        show(state, session, "x", "text", b"same", step=step)
    assert "are kept" not in nsml("media", "@last").stderr
    state.is_full_of_media = True
    for words in ((), ("--export", str(tmp_path / "out"))):
        said = nsml("media", "@last", *words).stderr
        assert said.count("of a session 100,000 are kept; further media are dropped") == 1


def test_what_is_damaged_on_the_way_is_not_written(nsml, state, session, tmp_path):
    one = show(state, session, "x", "text", b"bytes")
    state.blobs[digest_of(b"bytes")] = b"other"
    result = nsml("media", "@last", "--export", str(tmp_path / "out"), check=False)
    assert result.code == 1
    assert not [path for path in tmp_path.rglob("*.bin") if path.is_file()]
    assert one.root not in result.stdout


def test_files_of_one_manifest_are_fetched_together(nsml, state, session, tmp_path):
    contents = [b"first of two" * 9, b"", b"second", b"second"]
    entries = []
    for number, data in enumerate(contents):
        parts = [part for part in (data[:7], data[7:]) if part]
        state.blobs |= {digest_of(part): part for part in parts}
        refs = tuple(ChunkRef(digest_of(part), len(part)) for part in parts)
        entries.append(Entry(path=f"{number:064x}-1", mode=0o644, size=len(data), chunks=refs))
    manifest = build(entries)
    state.blobs[manifest.digest] = manifest.encode()
    for number in (3, 0, 1):
        show(state, session, f"n{number}", "text", b"", content_type="text/plain")
        one = state.media[session.id][-1]
        one.root, one.file = manifest.digest, entries[number].path
    result = nsml("media", "@last", "--export", str(tmp_path / "out"))
    written = {path.parent.name: path.read_bytes() for path in tmp_path.rglob("*.txt")}
    assert written == {f"n{number}": contents[number] for number in (3, 0, 1)}
    assert "3 files of kim/mnist/1: 114 Bytes" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--from", "100", "--to", "50"], "--to is before --from"),
        (["--step", "3", "--to", "50"], "without --from and --to"),
    ],
)
def test_steps_that_are_none_are_refused(nsml, session, words, said):
    result = nsml("media", "@last", *words, check=False)
    assert result.code == 2
    assert said in result.stderr
