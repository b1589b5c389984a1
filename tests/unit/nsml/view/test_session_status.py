"""How it stands with a session, in lines."""

import pytest

from controlplane.sessions.convert import shorten
from nsml.v1 import sessions_pb2 as pb
from nsml.v1.artifacts_pb2 import Artifact
from nsml.view.session_status import course, lines
from nsml.view.sessions import end_text, why_text

HELD_CAUSES = [one for one in pb.HeldCause.values() if one]


def session(state, cause=pb.CAUSE_UNSPECIFIED, **end):
    found = pb.Session(name="kim/mnist/3", state=state)
    if cause:
        found.end.CopyFrom(pb.SessionEnd(cause=cause, **end))
    return found


def test_where_its_program_failed_its_log_is_named():
    failed = session(pb.SESSION_STATE_FAILED, pb.CAUSE_PROGRAM_FAILED, exit_code=3)
    assert lines(failed, None, 0) == [
        "kim/mnist/3  ✗ Failed (exit 3)",
        "  see: nsml logs kim/mnist/3 --tail 20",
    ]


def test_of_a_gang_it_is_the_log_of_the_first_that_failed():
    failed = session(pb.SESSION_STATE_FAILED, pb.CAUSE_PROGRAM_FAILED, exit_code=3, rank=2)
    failed.spec.replica_count = 4
    assert lines(failed, None, 0)[1:] == ["  see: nsml logs kim/mnist/3 --rank 2"]


def test_one_that_was_stopped_while_it_was_queued_again_tells_of_each_attempt():
    ended = session(pb.SESSION_STATE_STOPPED, pb.CAUSE_STOP_REQUESTED, message="stopped by kim")
    ended.attempt = 1
    ended.attempts.add(number=1, nodes=["vm"], cause=pb.CAUSE_PREEMPTED, reason="requeued by kim")
    assert lines(ended, None, 0)[-1] == "  attempt 1: vm for 0s; requeued by kim"
    ended.replicas.add(node="vm")
    assert "attempt 1:" not in "".join(lines(ended, None, 0)), "its last one: told above"


@pytest.mark.parametrize(
    "cause", [pb.CAUSE_STOP_REQUESTED, pb.CAUSE_NODE_LOST, pb.CAUSE_DATA_FAILED]
)
def test_other_ends_have_their_words_alone(cause):
    ended = session(pb.SESSION_STATE_STOPPED, cause, message="so it was")
    assert lines(ended, None, 0)[1:] == ["  why: so it was"]


def test_of_one_that_waits_for_others_it_is_told_for_which():
    held = session(pb.SESSION_STATE_HELD, pb.CAUSE_UNSPECIFIED)
    held.held_cause = pb.HELD_CAUSE_AFTER
    held.spec.after.add(session="s1", name="kim/mnist/1")
    held.spec.after.add(session="s2", name="kim/mnist/2", any_end=True)
    found = lines(held, None, 0)
    assert found[0] == "kim/mnist/3  ⊘ Held (after others)"
    assert (
        "  why: it is held: it starts after other sessions, and one of them has not ended" in found
    )
    assert any(line.split() == ["after:", "kim/mnist/1", "kim/mnist/2:any"] for line in found)
    assert "  do:  nsml requeue kim/mnist/3    to queue it without waiting for them" in found
    assert "exit" not in "".join(found)


@pytest.mark.parametrize("cause", [one for one in HELD_CAUSES if one != pb.HELD_CAUSE_AFTER])
def test_of_one_that_is_held_it_is_told_why_and_what_to_do(cause):
    held = session(pb.SESSION_STATE_HELD, pb.CAUSE_DATA_FAILED, message="no room on its disk")
    held.held_cause = cause
    title, why, end, *advice = lines(held, None, 0)
    assert (
        title == f"kim/mnist/3  ⊘ Held ({pb.HeldCause.Name(cause)[11:].lower().replace('_', ' ')})"
    )
    assert why.startswith("  why: it is held: ")
    assert end == "  end: no room on its disk"
    assert "nsml stop kim/mnist/3 " in "".join(advice)
    assert all(line.startswith("  do:  nsml ") for line in advice)


def test_a_control_plane_that_does_not_say_why_it_is_held_tells_how_it_ended():
    held = session(pb.SESSION_STATE_HELD, pb.CAUSE_DATA_FAILED, message="no room on its disk")
    assert lines(held, None, 0) == [
        "kim/mnist/3  ⊘ Held (data)",
        "  why: no room on its disk",
    ]
    assert end_text(held) == why_text(held) == "no room on its disk"


def test_a_cause_of_a_newer_control_plane_is_told_as_far_as_it_is_known():
    held = session(pb.SESSION_STATE_HELD, pb.CAUSE_DATA_FAILED, message="no room on its disk")
    held.MergeFromString(bytes([46 << 3 & 0x7F | 0x80, 46 >> 4, 99]))
    assert held.held_cause == 99
    assert "this version does not know why" in lines(held, None, 0)[1]
    assert why_text(held) == "it is held: this version does not know why; no room on its disk"


def test_one_that_is_out_of_sight_may_go_on():
    unknown = session(pb.SESSION_STATE_UNKNOWN)
    unknown.replicas.add(node="gpu-1")
    found = "\n".join(lines(unknown, None, 0))
    assert "no contact with its node" in found
    assert "nsml node show gpu-1" in found


def test_of_a_program_that_failed_it_says_how_in_one_text():
    failed = session(pb.SESSION_STATE_FAILED, pb.CAUSE_PROGRAM_FAILED, exit_code=3)
    for message, text in (
        ("", "exit 3"),
        ("ValueError: loss is nan", "ValueError: loss is nan"),
        ("last output: no such file", "exit 3: no such file"),
    ):
        failed.end.message = message
        assert end_text(failed) == text


def test_what_it_waits_for_is_told_once():
    queued = session(pb.SESSION_STATE_QUEUED)
    queued.waiting = "needs 4 GPUs"
    assert lines(queued, None, 0)[1:] == ["  why: needs 4 GPUs"]
    waiting = pb.Waiting(reason="needs 4 GPUs on one node", place=1, queued=2)
    told = "\n".join(lines(queued, waiting, 0))
    assert told.count("needs 4 GPUs") == 1
    assert "place: 1 of 2" in told


def test_the_course_of_a_session_is_told_as_far_as_it_came():
    one = session(pb.SESSION_STATE_RUNNING)
    one.created_at.seconds, one.attempt = 1_000_000, 1
    assert course(one, 1_000_090) == [("created", "01-12 13:46:40Z, a minute ago")]
    one.started_at.seconds = 1_000_030
    one.spec.time_limit.seconds = 7200
    one.replicas.add(node="gpu-1").devices.add(index=3)
    one.replicas[0].devices.add(index=1)
    told = dict(course(one, 1_000_630))
    assert (told["runs for"], told["time limit"]) == ("10m", "2h, 1h50m left")
    assert told["devices"] == "gpu-1: GPU 1, 3"
    one.attempt = 2
    assert dict(course(one, 1_000_630))["time limit"] == "2h"
    one.state, one.ended_at.seconds = pb.SESSION_STATE_SUCCEEDED, 1_000_330
    told = dict(course(one, 1_000_630))
    assert (told["ran for"], told["ended"]) == ("5m", "01-12 13:52:10Z, 5 minutes ago")
    assert list(told) == ["created", "started", "ran for", "ended", "time limit", "devices"]


def test_changes_that_were_refused_are_no_changes_and_of_others_the_last_stand_there():
    found = session(pb.SESSION_STATE_RUNNING)
    for number in range(1, 31):
        applied, withdrawn = pb.PROGRAM_CHANGE_PHASE_APPLIED, pb.PROGRAM_CHANGE_PHASE_WITHDRAWN
        found.changes.add(
            number=number,
            kind=pb.PROGRAM_CHANGE_KIND_SET,
            phase=applied if number <= 7 else withdrawn,
            values={"lr": str(number)},
        )
    earlier = "  changed: before that, see $ nsml set kim/mnist/3"
    last = [f"  changed: lr={number}  applied  by " for number in range(3, 8)]
    assert lines(found, None, 0)[1:] == [earlier, *last]
    shorten(found)
    assert lines(found, None, 0)[1:] == [earlier], "those that were made are not in a listing"


def test_output_datasets_of_which_nothing_came_are_named_with_the_reason():
    ended = session(pb.SESSION_STATE_SUCCEEDED, pb.CAUSE_COMPLETED)
    ended.attempt = 2
    ended.ended_at.seconds = 9
    ended.spec.output_datasets.extend(["made=out", "gone", "refused", "same", "silent"])
    ended.made_datasets.add(name="lee/made", version=1)
    artifacts = [
        Artifact(name="gone", attempt=1, why_lost="of another attempt"),
        Artifact(name="gone", attempt=2, why_lost="there is no folder"),
        Artifact(name="refused", attempt=2, note="no version of the dataset: too many"),
        Artifact(name="same", attempt=2),
    ]
    assert [one for one in lines(ended, None, 0, artifacts) if "not made" in one] == [
        "  not made: a version of gone: there is no folder",
        "  not made: a version of refused: too many",
        "  not made: a version of same: the newest version had this content, or you may not see the dataset",
        "  not made: a version of silent: its node has reported none",
    ]
    ended.state = pb.SESSION_STATE_FAILED
    assert "  not made: a version of gone: the session did not succeed" in lines(ended, None, 0, [])
    assert not any("not made" in one for one in lines(ended, None, 0)), "a listing does not tell"
    ended.ClearField("ended_at")
    assert not any("not made" in one for one in lines(ended, None, 0, []))
