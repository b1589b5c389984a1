"""What the object store keeps: shown, limited, and removed."""

import json

from nsml.v1 import accounts_pb2, projects_pb2
from nsml.view import user_storage


def test_storage_names_what_takes_most_and_what_removes_it(nsml):
    shown = nsml("storage").stdout
    assert (
        "kim has 900 Bytes of 1.0 kB in the object store, counted 5 minutes ago, and again soon"
        in shown
    )
    assert "at the limit" in shown
    assert "checkpoints        800 Bytes" in shown
    assert "each stored file 4 KiB at least)\nlargest, by the sizes of their files, with" in shown
    assert "700 Bytes  nsml rm kim/mnist/1" in shown
    assert "nsml model rm kim/mnist/2 CHECKPOINT" in shown
    assert "nsml dataset rm mnist" in shown


def test_ten_largest_are_not_all_of_them():
    usage = accounts_pb2.Usage(user="kim")
    for number in range(9):
        usage.largest.add(name=f"kim/d/{number}", kind=accounts_pb2.KEPT_KIND_CHECKPOINTS, bytes=9)
    assert "smaller" not in "".join(user_storage.lines(usage, 0.0))
    usage.largest.add(name="mnist", kind=accounts_pb2.KEPT_KIND_DATASETS, bytes=1)
    shown = user_storage.lines(usage, 0.0)
    assert (
        "the 10 largest, by the sizes of their files, with the command that removes each:" in shown
    )
    assert shown[-1] == "  there may be smaller ones: nsml dataset ls, nsml ps -a"


def test_storage_in_raw_values(nsml):
    found = json.loads(nsml("storage", "-j").stdout)
    found = found.get("data", found)
    text = json.dumps(found)
    assert '"kept_bytes": 900' in text
    assert '"checkpoints": 800' in text
    assert '"counted_at"' in text


def test_administrators_list_everybody(nsml):
    shown = nsml("storage", "--all").stdout
    assert "no limit (own)" in shown
    assert "not counted yet" in nsml("storage", "--all", "-o", "wide").stdout
    assert nsml("storage", "kim", "--all", check=False).code == 2


def test_a_project_is_shown_with_users_and_what_could_go(nsml, everything):
    shown = nsml("storage", "--project", "vision").stdout
    assert shown.startswith("project vision has 900 Bytes of 1.0 kB in the object store, counted ")
    assert "by user, by the sizes of their files:\n  700 Bytes  kim\n   90 Bytes  lee\n" in shown
    assert shown.endswith("  700 Bytes  nsml rm kim/mnist/1\n")
    found = json.loads(nsml("storage", "--project", "vision", "-j").stdout)
    found = found.get("data", found)
    assert (found["project"], found["kept_bytes"], found["limit_bytes"]) == ("vision", 900, 1000)
    assert found["users"] == [{"user": "kim", "bytes": 700}, {"user": "lee", "bytes": 90}]
    assert nsml("storage", "--project", "nobodys", check=False).code == 5
    assert nsml("storage", "--project", "vision", "--all", check=False).code == 2


def test_projects_are_listed(nsml):
    listed = nsml("storage", "--projects").stdout
    assert listed.splitlines()[2].split()[:3] == ["vision", "900", "Bytes"]


def test_a_dataset_is_removed_when_it_is_agreed_to(nsml, everything, state):
    refused = nsml("dataset", "rm", "mnist", check=False)
    assert refused.code == 2
    assert state.datasets
    said = nsml("dataset", "rm", "mnist", "-y").stdout
    assert "removed 1 version of kim/mnist; 1 live session can use it until the end" in said
    assert not [one for one in state.datasets if one.name == "mnist"]
    assert nsml("dataset", "rm", "mnist", "-y", check=False).code == 5


def test_checkpoints_are_removed_by_name(nsml, everything, state):
    nsml("model", "rm", "kim/mnist/1", "best", check=False)
    said = nsml("model", "rm", "kim/mnist/1", "best", "-y").stderr
    assert "removed 1 checkpoint: best" in said
    assert "best" not in nsml("model", "ls", "kim/mnist/1").stdout


def test_a_checkpoint_that_is_not_there_is_told_with_those_that_are(nsml, everything, state):
    wrong = nsml("model", "rm", "kim/mnist/1", "bset", "-y", check=False)
    assert wrong.code == 5
    assert "has no checkpoint 'bset'\n  why: there are " in wrong.stderr
    assert "  try: nsml model rm kim/mnist/1 best\n" in wrong.stderr
    state.add("kim/mnist/2")
    for name in ("best", "*"):
        none = nsml("model", "rm", "kim/mnist/2", name, check=False)
        assert (none.code, none.stderr) == (
            5,
            "error: kim/mnist/2 has no checkpoints: there is nothing to remove\n",
        )


def test_an_administrator_limits_what_is_kept_for_one_user(nsml, state):
    for text, kept_bytes in (("2T", 2 * 10**12), ("none", 0)):
        nsml("admin", "user", "set", "kim", "--kept", text)
        assert state.kept_limits["kim"].kept_bytes == kept_bytes
        assert state.kept_limits["kim"].WhichOneof("kept_limit") == "kept_bytes"
    told = nsml("admin", "user", "set", "kim", "--kept", "default").stderr
    assert told == "user kim: the object store may keep as much as for all others\n"
    assert state.kept_limits["kim"].default_kept
    wrong = nsml("admin", "user", "set", "kim", "--kept", "much", check=False)
    assert wrong.code == 2
    assert nsml("admin", "user", "set", "eve", "--kept", "2T", check=False).code == 5


def test_a_project_of_which_nothing_is_counted_shows_no_figure():
    stored = projects_pb2.ProjectStorage(project="kim", is_uncounted=True)
    assert user_storage.project_lines(stored, 0.0) == [
        "project kim has no limits, and is not counted apart from its user"
    ]
    assert user_storage.project_record(stored)["kept_bytes"] is None
