"""Versions of datasets: listed, compared, tagged, shared, removed and restored."""

import json
import shlex
import shutil

import pytest

from nsml.content.manifest import decode
from nsml.v1 import datasets_pb2, resources_pb2
from tests.support.trees import stored_tree
from tests.unit.cli.test_written import pasted


@pytest.fixture
def two(nsml, tmp_path, state):
    """Two versions of kim/digits."""
    data = tmp_path / "data"
    (data / "train").mkdir(parents=True)
    for name in ("one", "two", "three"):
        (data / "train" / name).write_text(name * 1000)
    (data / "labels.csv").write_text("a,b\n")
    nsml("dataset", "push", "digits", str(data), "-m", "first")
    (data / "train/one").rename(data / "train/1")
    (data / "train/two").unlink()
    (data / "labels.csv").write_text("a,b\nc,d\n")
    (data / "new").write_text("new")
    nsml("dataset", "push", "digits", str(data), "-m", "second")
    state.datasets[-1].tags.append("gold")
    return data


def test_versions_are_listed_newest_first(nsml, two):
    shown = nsml("dataset", "versions", "digits").stdout.splitlines()
    assert shown[0].split() == ["Version", "Created", "Size", "Files", "Tags", "Message", "Author"]
    assert [line.split()[0] for line in shown[2:]] == ["2", "1"]
    assert "gold" in shown[2]
    items = json.loads(nsml("dataset", "versions", "kim/digits", "-j").stdout)["items"]
    assert [(one["name"], one["tags"], one["author"]) for one in items] == [
        ("kim/digits@2", ["gold"], "kim"),
        ("kim/digits@1", [], "kim"),
    ]
    assert nsml("dataset", "versions", "digits@1", check=False).code == 2


DIFFERS = [
    "changed  labels.csv  4 Bytes -> 8 Bytes",
    "added    new  3 Bytes",
    "renamed  train/one -> train/1  3.0 kB",
    "removed  train/two  3.0 kB",
    "1 added, 1 removed, 1 changed, 1 renamed, 1 file unchanged; +11 Bytes, -3.0 kB",
]


@pytest.mark.parametrize(
    "words", [["digits@1", "digits@2"], ["digits"], ["digits@1"], ["kim/digits@1", "digits@gold"]]
)
def test_two_versions_are_compared(nsml, two, words):
    done = nsml("dataset", "diff", *words)
    assert done.stderr == "kim/digits@1 -> kim/digits@2\n"
    assert done.stdout.splitlines() == DIFFERS


def test_a_long_difference_is_cut_and_counted(nsml, two):
    lines = nsml("dataset", "diff", "digits", "--limit", "1").stdout.splitlines()
    assert lines == [DIFFERS[0], "... and 3 more files", DIFFERS[-1]]
    told = json.loads(nsml("dataset", "diff", "digits", "--limit", "0", "-j").stdout)
    assert (told["files"], told["left_out"], told["renamed"]) == ([], 4, 1)
    same = nsml("dataset", "diff", "digits@1", "digits@1").stdout
    assert same == "nothing differs: 4 files unchanged\n"


def test_a_dataset_with_one_version_has_nothing_to_compare(nsml, everything):
    done = nsml("dataset", "diff", "mnist", check=False)
    assert (done.code, "one version only" in done.stderr) == (1, True)


def test_a_tag_moves_and_is_told_so(nsml, two):
    assert nsml("dataset", "tag", "digits@1", "best").stdout == "best is kim/digits@1\n"
    moved = nsml("dataset", "tag", "digits@gold", "best").stdout
    assert moved == "best is kim/digits@2, no longer @1\n"
    assert "Tags           gold best" in nsml("dataset", "info", "digits@best").stdout
    assert nsml("dataset", "info", "digits@none", check=False).code == 5
    assert nsml("dataset", "untag", "digits", "best").code == 0
    assert nsml("dataset", "untag", "digits@2", "best", check=False).code == 2


def test_a_session_gets_the_version_of_a_tag(nsml, two, state):
    nsml("run", "-g", "0", "-d", "digits@gold", "--argv", "--", "true")
    [session] = state.sessions.values()
    assert session.spec.datasets[0].tag == "gold"
    done = nsml("run", "-g", "0", "-d", "digits@none", "--argv", "--", "true", check=False)
    assert (done.code, len(state.sessions)) == (5, 1)


def test_what_is_said_of_a_dataset_and_who_sees_it(nsml, two, state):
    assert nsml("dataset", "describe", "digits", "by hand").stdout == "kim/digits is described\n"
    assert nsml("dataset", "share", "digits", "--public").stdout == "kim/digits is public\n"
    assert state.datasets[-1].visibility == resources_pb2.VISIBILITY_PUBLIC
    shown = nsml("dataset", "info", "digits").stdout
    assert "Description    by hand" in shown
    assert "Message        second" in shown
    assert "Used by        2 live sessions (1 queued): kim/mnist/1 and 1 more; 3 ended" in shown
    assert "digits" in nsml("dataset", "search", "hand").stdout
    assert "no dataset" in nsml("dataset", "search", "foot").stderr
    assert "digits" in nsml("dataset", "search", "dig*", "hand").stdout
    assert "no dataset" in nsml("dataset", "search", "*x").stderr
    assert nsml("dataset", "search", "a*", "b*", check=False).code == 2
    nothing = nsml("dataset", "describe", "digits", "").stdout
    assert nothing == "kim/digits has no description\n"
    for words in (["share", "digits"], ["share", "digits", "--team", "--public"]):
        assert nsml("dataset", *words, check=False).code == 2
    assert nsml("dataset", "share", "digits@1", "--public", check=False).code == 2


def test_a_removal_names_the_users_and_is_undone(nsml, two, state):
    asked = nsml("dataset", "rm", "digits@gold", terminal=True, stdin="n\n", check=False).stderr
    assert "the dataset kim/digits@2 (tagged gold; used by 2 live sessions (1 queued): kim" in asked
    gone = json.loads(nsml("dataset", "rm", "digits@gold", "-y", "-j").stdout)
    assert (gone["name"], gone["removed"]) == ("kim/digits@2", 1)
    assert gone["restorable_until"]
    [listed] = json.loads(nsml("dataset", "ls", "--removed", "-j").stdout)["items"]
    assert (listed["name"], listed["message"]) == ("kim/digits@2", "second")
    assert None not in {listed["removed_at"], listed["restorable_until"]}
    assert nsml("dataset", "ls", "--removed", "-o", "name").stdout == "kim/digits@2\n"
    assert nsml("dataset", "ls", "x*", "--removed").stderr == "nothing that you can restore\n"
    assert nsml("dataset", "info", "digits@2", check=False).code == 5
    back = nsml("dataset", "restore", "digits@2").stdout
    assert back == "restored kim/digits: @2; the newest is @2\n"
    assert "restore kim/digits\n" in nsml("dataset", "rm", "digits", "-y").stdout
    told = json.loads(nsml("dataset", "restore", "digits", "-j").stdout)
    assert sorted(told["restored"]) == [1, 2]
    assert nsml("dataset", "restore", "digits@gold", check=False).code == 2


def test_several_are_removed_by_names_and_globs(nsml, two, state):
    for name in ("dig_a", "dig_b", "other"):
        nsml("dataset", "push", name, str(two / "new"))
    asked = nsml("dataset", "rm", "dig_*", "digits@1", terminal=True, stdin="n\n", check=False)
    assert "  kim/dig_a     all versions" in asked.stderr
    assert "remove 3 datasets? " in asked.stderr
    told = nsml("dataset", "rm", "dig_*", "digits", "digits@1", "-y").stdout
    assert (
        "removed 2 versions of kim/digits; 1 live session can use it until the end, of kim/" in told
    )
    assert told.count("to undo it") == 3
    assert {one.name for one in state.datasets} == {"other"}
    assert [
        one["name"] for one in json.loads(nsml("dataset", "rm", "o*", "-y", "-j").stdout)["items"]
    ] == ["kim/other"]
    for words, code in (["no*"], 5), (["lee/*"], 5), (["o*@1"], 2):
        assert nsml("dataset", "rm", *words, "-y", check=False).code == code


def test_what_looks_secret_is_named_with_the_line_that_leaves_it_out(nsml, tmp_path, project):
    data = tmp_path / "my data"
    for name in (
        ".env",
        "a.txt",
        ".env.example",
        "deploy/Key.PEM",
        ".aws/credentials",
        ".git/HEAD",
    ):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text("a")
    told = nsml("dataset", "push", "d", str(data)).stderr
    assert "warning: 3 files look like secrets, and are sent: .aws/credentials, .env" in told
    pasted(project, told)
    assert "secret" not in nsml("dataset", "push", "d", str(data)).stderr
    (project / "id_rsa").touch()
    told = nsml("run", "--dry-run").stderr
    assert "warning: 1 file looks like a secret, and is sent: id_rsa" in told
    pasted(project, told)
    assert "secret" not in nsml("run", "--dry-run").stderr


def test_what_a_push_does_not_use_is_said(nsml, two):
    told = nsml("dataset", "push", "digits", str(two), "-m", "it's 3").stderr
    assert "no new version: nothing changed; -m is ignored" in told
    advised = told.partition("  try: nsml ")[2].partition("    ")[0]
    assert nsml(*shlex.split(advised)).stdout == "kim/digits is described\n"
    told = nsml("dataset", "push", "one", str(two / "new"), "--exclude", "new", "-m", "x").stderr
    assert "--exclude leaves files out of a folder" in told
    assert "nothing changed" not in told


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (["describe", "digits@1", "a b"], "names one version, and this changes the dataset"),
        (["share", "digits@gold", "--team"], "names one version, and this changes the dataset"),
        (["untag", "digits@2", "gold"], "names one version, and this changes the dataset"),
        (["descrbe", "digits", "a b"], "no such command: 'descrbe'; did you mean 'describe'?"),
        (["inof", "digits"], "no such command: 'inof'; did you mean 'info'?"),
    ],
)
def test_what_is_advised_can_be_pasted(nsml, two, words, refused):
    told = nsml("dataset", *words, check=False).stderr
    assert refused in told
    nsml(*shlex.split(told.partition("  try: nsml ")[2].splitlines()[0]))


@pytest.mark.parametrize(
    ("words", "broken", "said"),
    [
        (["push", "digits", "DATA"], "nsml.client.uploads.push", "no version was made"),
        (["push", "digits", "DATA"], "nsml.client.uploads.made_of", "has perhaps got its version"),
        (["pull", "digits", "there"], "nsml.client.content.download", "nothing was written"),
    ],
)
def test_ctrl_c_says_what_is_kept_and_how_to_go_on(
    nsml, two, project, monkeypatch, words, broken, said
):
    async def interrupted(*_, **__):
        raise KeyboardInterrupt

    (two / "more").touch()
    (project / "digits").mkdir()  # no sign that the arguments are swapped
    words = ["dataset", *(str(two) if word == "DATA" else word for word in words)]
    with monkeypatch.context() as patched:
        patched.setattr(broken, interrupted)
        done = nsml(*words, check=False)
    assert done.code == 130
    assert said in done.stderr
    assert f"  try: nsml {shlex.join(words)}" in done.stderr
    nsml(*words)


@pytest.fixture
def scored(tmp_path):
    """A folder as NSML's competitions had it."""
    for path in ("train/train_data", "test/test_data", "test/test_label", "evaluation.py"):
        (tmp_path / "kin" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "kin" / path).write_text(path * 100)
    return tmp_path / "kin"


def test_parts_are_hidden_when_they_are_pushed_and_named_wherever_it_is_shown(nsml, scored, state):
    done = nsml("dataset", "push", "kin", str(scored), "--hide", "./test/", "--owner-only", "train")
    assert done.stdout == "Dataset kim/kin is at version 1\n"
    lines = [
        "test             hidden      2 files, 2.9 kB",
        "train            owner only  1 file, 1.6 kB",
        "all other files  open        1 file, 1.3 kB",
    ]
    assert [line.strip() for line in done.stderr.splitlines()[-3:]] == lines
    shown = nsml("dataset", "info", "kin").stdout
    assert f"Parts          {lines[0]}\n               {lines[1]}\n" in shown
    part = json.loads(nsml("dataset", "info", "kin", "-j").stdout)["parts"][1]
    assert (part["path"], part["access"], part["file_count"]) == ("test", "hidden", 2)
    for words in (["ls"], ["versions", "kin"]):
        assert "test (hidden), train (owner only)" in nsml("dataset", *words, "-o", "wide").stdout
    told = nsml("dataset", "share", "kin", "--show", "train", "--hide", "test").stdout
    assert told.splitlines()[1] == "train            open        1 file, 1.6 kB"
    assert state.datasets[-1].visibility == resources_pb2.VISIBILITY_PRIVATE
    state.datasets[-1].parts[1].digest = ""
    pulled = nsml("dataset", "pull", "kin", str(scored.parent / "there"))
    assert "not included, hidden by the owner: test\n" in pulled.stderr
    words = ["dataset", "pull", "kin", str(scored.parent / "part"), "--only", "test/other"]
    done = nsml(*words, check=False)
    assert (done.code, "error: test of kim/kin is hidden by the owner\n" in done.stderr) == (
        5,
        True,
    )


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--hide", "test/label"], 2, "there is no file test/label to hide"),
        (["--hide", "test", "--owner-only", "test/"], 2, "two flags name 'test'"),
        (["-l", "-e", "judge.py"], 2, "there is no file 'judge.py'"),
        (["-e", "test/test_data"], 2, "two files would be evaluation.py at the top"),
        (["-e", "judge.py", "-e", "evaluation.py"], 2, "-e names one file"),
        (["-l", "--under", "data"], 2, "there is no folder test"),
        (["--exclude", "*"], 2, "has no files"),
        (["--under", "../up"], 2, "no files can be below '../up'"),
        (["-e", "x" * 300], 2, "there is no file 'xxx"),
        (["--under", "/"], 2, "no files can be below '/'"),
    ],
)
def test_what_cannot_be_a_part_is_said_before_anything_is_sent(
    nsml, scored, state, words, code, says
):
    done = nsml("dataset", "push", "kin", str(scored), *words, check=False)
    assert (done.code, state.blobs, state.datasets) == (code, {}, [])
    assert says in done.stderr


@pytest.mark.parametrize("words", [["-f", "-l"], ["-v", "-f", "-l", "-e", "evaluation.py"]])
def test_nsmls_leaderboard_form_hides_the_test_folders(nsml, scored, state, words):
    (scored / "test_submit/test_label").mkdir(parents=True)
    (scored / "test_submit/test_label/one").write_text("1")
    done = nsml("dataset", "push", *words, "kin", str(scored))
    hidden = {one.path: one.access for one in state.datasets[-1].parts if one.path}
    labels = ("test/test_label", "test_submit/test_label")
    assert hidden.keys() >= {"test", *labels}
    assert set(hidden.values()) == {3}
    assert ("  1.4 kB  test/test_data" in done.stderr) == ("-v" in words)


@pytest.mark.parametrize(
    ("loader", "note"),
    [
        (None, "there is no data_loader.py at the top: submissions fail without test_data_loader or feed_infer"),
        ("def load(path): ...", "data_loader.py defines neither test_data_loader nor feed_infer: submissions will fail"),
        ("def test_data_loader(", "data_loader.py is not valid Python, submissions will fail: "),
        ("def test_data_loader(path): ...", ""),
        ("from rows import feed as feed_infer", ""),
        ("if True:\n    feed_infer = print", ""),
        ("from rows import *", ""),
    ],
)  # fmt: skip
def test_a_board_without_a_usable_loader_is_noted(nsml, scored, state, loader, note):
    if loader is not None:
        (scored / "data_loader.py").write_text(loader)
    _with_dry_runs(scored)
    words = ["dataset", "push", "-l", "kin", str(scored)]
    said = nsml(*words).stderr
    assert state.datasets, "it is pushed all the same"
    if note:
        assert f"note: {note}" in said
        assert said.endswith(f"  then: nsml {' '.join(words)}\n")
    else:
        assert "note: " not in said
        assert "  next: nsml board info kin    shows its board" in said
        assert "nsml board set kin --limit 5/1d" in said
        assert "nsml board set kin --min" in said


def _with_dry_runs(folder):
    (folder / "test_submit").mkdir()
    for name in ("test_data", "test_label"):
        (folder / "test_submit" / name).write_text(name)


def test_a_board_without_dry_runs_or_labels_is_noted(nsml, scored):
    """Labels under another name are test inputs, which predictions read."""
    (scored / "data_loader.py").write_text("def test_data_loader(path): ...")
    words = ["dataset", "push", "-l", "kin", str(scored)]
    said = nsml(*words).stderr
    assert "note: there is no folder test_submit: dry runs (nsml submit -t) are refused\n" in said
    assert "  next: nsml board info kin" in said
    _with_dry_runs(scored)
    (scored / "test/test_label").rename(scored / "test/labels.csv")
    said = nsml(*words).stderr
    assert "note: there is no test/test_label: nothing can be submitted without labels in" in said
    assert "no folder test_submit" not in said
    assert said.endswith(f"  then: nsml {' '.join(words)}\n")


@pytest.mark.parametrize(
    ("rows", "note"),
    [
        ("0\n2\n", ""),
        ("0\n3\n", "test/public_rows names row 3, the last one is 2"),
        ("", "test/public_rows names no rows"),
        ("header\n2\n", "test/public_rows names row 2, the last one is 1"),
        ("one\n", "test/public_rows"),
    ],
)
def test_public_rows_that_would_fail_every_evaluation_are_noted(nsml, scored, rows, note):
    """A dry run does not read them."""
    (scored / "data_loader.py").write_text("def test_data_loader(path): ...")
    (scored / "test/test_label").write_text("4\n5\n6\n")
    (scored / "test/public_rows").write_text(rows)
    said = nsml("dataset", "push", "-l", "kin", str(scored)).stderr
    assert (f"note: submissions will fail: {note}" in said) == bool(note)
    assert ("submissions will fail" in said) == bool(note)


def test_open_test_labels_are_noted(nsml, scored):
    """A push without -l publishes the answers."""
    _with_dry_runs(scored)
    said = nsml("dataset", "push", "--public", "kin", str(scored)).stderr
    for labels in ("test/test_label", "test_submit/test_label"):
        assert f"note: {labels} is open: everybody with access to kin reads it\n" in said
        assert f"  try: nsml dataset share kin --hide {labels}    or push with -l\n" in said
    assert "more with test labels" not in said
    for number in range(5):
        (scored / f"test/test_label_{number}").write_text(str(number))
    said = nsml("dataset", "push", "kin", str(scored)).stderr
    assert said.count("reads it") == 3
    assert "note: 4 more with test labels are open: push with -l\n" in said
    for number in range(5):
        (scored / f"test/test_label_{number}").unlink()
    for hiding in (["-l"], ["--hide", "test", "--owner-only", "test_submit"]):
        assert "is open" not in nsml("dataset", "push", "other", str(scored), *hiding).stderr


def test_a_board_without_an_evaluation_is_noted(nsml, scored):
    (scored / "evaluation.py").unlink()
    said = nsml("dataset", "push", "-l", "kin", str(scored)).stderr
    assert "note: there is no evaluation.py at the top: nothing can be submitted (-e FILE" in said
    assert "board" not in nsml("dataset", "push", "other", str(scored)).stderr


def test_a_plain_folder_is_put_where_programs_of_nsml_look(nsml, scored, state):
    nsml("dataset", "push", "kin", str(scored / "train"), "--under", "train/kin/")
    [entry] = decode(state.blobs[state.datasets[-1].digest]).entries
    assert entry.path == "train/kin/train_data"


def test_nsmls_force_puts_a_plain_folder_where_its_programs_look(nsml, scored, state, monkeypatch):
    """One that is laid out for NSML stays as it is; without -f a first push says what NSML would have done."""
    plain = scored.parent / "faces"
    plain.mkdir()
    (plain / "images.npy").write_text("1")

    def pushed(*words):
        done = nsml("dataset", "push", *words)
        manifest, _ = stored_tree(state.blobs, state.datasets[-1].digest)
        return {one.path for one in manifest.entries}, done.stderr

    files, said = pushed("kin", str(plain))
    assert files == {"images.npy"}
    assert "note: programs written for NSML look for the files below train/faces\n" in said
    assert f"  try: nsml dataset push kin {plain} --under train/faces\n" in said
    assert "NSML" not in pushed("-v", "kin", str(plain))[1], "known by now"
    monkeypatch.chdir(plain)
    files, said = pushed("-f", "-v", "kin", ".")
    assert files == {"train/faces/images.npy"}
    assert "note: the files are below train/faces in the dataset, as in NSML\n" in said
    assert pushed("-f", "kin", ".", "--under", "raw")[0] == {"raw/images.npy"}
    assert pushed("-f", "kin", "images.npy")[0] == {"images.npy"}
    files, said = pushed("-f", "other", str(scored))
    assert "train/train_data" in files
    assert "NSML" not in said


def test_a_dataset_in_place_is_a_list_of_its_files_and_is_copied_where_they_are(
    nsml, state, tmp_path, project
):
    shared = (tmp_path / "shared").resolve()
    (shared / "train").mkdir(parents=True)
    for name in ("train/1", "train/2", "labels"):
        (shared / name).write_text(name * 1000)
    added = json.loads(nsml("dataset", "add", "big", "--in-place", str(shared), "-j").stdout)
    assert (added["in_place"], added["file_count"], added["size_bytes"]) == (str(shared), 3, 20_000)
    assert sum(map(len, state.blobs.values())) < 5_000, "the files themselves are not sent"
    assert f"In place at    {shared}\n" in nsml("dataset", "info", "big").stdout
    assert str(shared) in nsml("dataset", "versions", "big").stdout
    assert "already is" in nsml("dataset", "add", "big", "--in-place", str(shared)).stdout
    assert nsml("dataset", "pull", "big", "here").stdout == "here/big\n"
    assert (project / "here/big/train/2").read_text() == "train/2" * 1000
    assert "in place" not in nsml("doctor", "storage").stderr
    (shared / "labels").write_text("other")
    told = nsml("doctor", "storage", check=False)
    assert (told.code, "labels has 5 bytes, not 6,000" in told.stderr) == (1, True)
    assert "datasets in place  kim/big@1" in told.stdout
    told = nsml("doctor", "storage", "--repair", check=False)
    assert (told.code, "datasets in place  kim/big@1" in told.stdout) == (1, True)
    nsml("dataset", "add", "big", "--in-place", str(shared))
    told = nsml("doctor", "storage", check=False)
    lines = [line.split() for line in told.stdout.splitlines() if "in place" in line]
    assert (told.code, [line[3:6] for line in lines]) == (1, [["kim/big@1", "1", "file"]])
    shared.rename(tmp_path / "away")
    assert "which this machine does not have" in nsml("doctor", "storage").stderr
    (tmp_path / "away").rename(shared)
    told = nsml("dataset", "pull", "big@1", "there", check=False)
    assert (told.code, "labels is not what it was" in told.stderr) == (1, True)
    assert f"nsml dataset add kim/big --in-place {shared}    # as its owner, makes" in told.stderr
    nsml("dataset", "push", "other", str(shared))
    told = nsml("dataset", "diff", "big@1", "other", check=False)
    assert (told.code, "in place cannot be compared with one that is not" in told.stderr) == (
        1,
        True,
    )
    (shared / "train/2").rename(shared / "train/3")
    nsml("dataset", "add", "big", "--in-place", str(shared))
    found = json.loads(nsml("dataset", "diff", "big@1", "big", "-j").stdout)
    differ = [(one["change"], one["path"], one["path_before"]) for one in found["files"]]
    assert differ == [("changed", "labels", None), ("renamed", "train/3", "train/2")]
    assert (found["unchanged"], found["removed_bytes"], found["added_bytes"]) == (1, 6_000, 5)
    (tmp_path / "link").symlink_to(shared)
    told = nsml("dataset", "add", "big", "--in-place", str(tmp_path / "link"), check=False)
    assert (told.code, f"  try: nsml dataset add big --in-place {shared}\n" in told.stderr) == (
        2,
        True,
    )


def test_an_evaluation_outside_of_the_folder_goes_to_the_top(nsml, scored, state):
    """As with NSML, where PATH was the data alone; whatever the file is called."""
    (scored / "evaluation.py").unlink()
    judge = scored.parent / "judges" / "judge.py"
    judge.parent.mkdir()
    judge.write_text("print(1)")
    words = ["dataset", "push", "-v", "-f", "-e", str(judge), "kin", str(scored)]
    nsml(*words)
    manifest, _ = stored_tree(state.blobs, state.datasets[-1].digest)
    files = {one.path: one for one in manifest.entries}
    assert files.keys() == {
        "evaluation.py",
        "train/train_data",
        "test/test_data",
        "test/test_label",
    }
    assert state.blobs[files["evaluation.py"].chunks[0].digest] == b"print(1)"
    nsml(*words)
    assert len({one.digest for one in state.datasets if one.name == "kin"}) == 1


def test_a_part_is_pulled_and_what_is_not_there_is_said(nsml, scored, state):
    nsml("dataset", "push", "kin", str(scored))
    there = scored.parent / "there"
    words = ["dataset", "pull", "kin", str(there), "--only", "./test/", "--only", "nothing"]
    done = nsml(*words, "-j", check=False)
    assert done.code == 9
    assert "part of version 1 of kim/kin: 2 files (2.9 kB)\n" in done.stderr
    assert "note: there is no file nothing in it, and none below it\n" in done.stderr
    assert json.loads(done.stdout)["not_there"] == ["nothing"]
    found = {str(one.relative_to(there)) for one in there.rglob("*") if one.is_file()}
    assert found == {"kin/test/test_data", "kin/test/test_label"}
    shutil.rmtree(there)
    none = nsml(*words[:4], "--only", "tes", check=False)
    assert (none.code, there.exists()) == (5, False)
    assert nsml(*words[:4], "--only", "train/train_data").code == 0
    assert [one.name for one in (there / "kin").iterdir()] == ["train"]


def test_only_the_last_part_of_a_path_is_made(nsml, two, project):
    done = nsml("dataset", "pull", "digits", "no/such", check=False)
    assert (done.code, (project / "no").exists()) == (5, False)
    assert "no/such cannot be written: there is no folder no\n" in done.stderr
    assert "  try: mkdir -p no\n" in done.stderr
    assert nsml("dataset", "pull", "digits", "such").stdout == "such/digits\n"


def test_what_made_a_version_is_told_as_fields_and_as_a_tree(nsml, state):
    def version(name, number, session="", sources=(), **made):
        found = datasets_pb2.Dataset(owner="kim", name=name, version=number, digest=name)
        if session or made:
            found.lineage.CopyFrom(datasets_pb2.DatasetLineage(session=session, **made))
        for text in sources:
            found.lineage.datasets.add(name=text.partition("@")[0], version=int(text[-1]))
        state.datasets.append(found)

    state.datasets.clear()
    version("mnist", 3)
    version("features", 2, "kim/mnist/7", ["kim/mnist@3"], code="c" * 64, environment_lock="e" * 64)
    version("hidden", 1, sources=["kim/mnist@3"], withheld_datasets=1)
    run = ["nsml", "run", "-d", "features@2"]
    read = ["kim/features@2", "kim/hidden@1", "kim/gone@4"]
    version("scores", 1, "kim/features/9", read, attempt=2, command=run)
    assert nsml("dataset", "lineage", "scores").stdout.splitlines() == [
        "kim/scores@1",
        "  made by kim/features/9, attempt 2",
        "    $ nsml run -d features@2",
        "    kim/features@2",
        "      made by kim/mnist/7, code cccccccccccc, packages eeeeeeeeeeee",
        "        kim/mnist@3   pushed",
        "    kim/hidden@1",
        "      made by a session that you may not see",
        "        1 dataset that you may not see",
        "        kim/mnist@3",
        "    kim/gone@4   removed, or not visible any more",
    ]
    graph = json.loads(nsml("dataset", "lineage", "scores@1", "-j").stdout)
    assert [one["name"] for one in graph["versions"]] == ["kim/scores@1", *read, "kim/mnist@3"]
    assert graph["versions"][0]["lineage"]["session"] == "kim/features/9"
    assert (
        "kim/features/9, attempt 2, from kim/features@2, "
        in nsml("dataset", "info", "scores").stdout
    )
    shown = nsml("dataset", "versions", "scores").stdout.splitlines()
    assert "Made by" in shown[0]
    assert "kim/features/9" in shown[2]
    assert "Made by" not in nsml("dataset", "versions", "mnist").stdout
    assert json.loads(nsml("dataset", "info", "mnist", "-j").stdout)["lineage"] is None
