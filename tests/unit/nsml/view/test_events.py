"""What happened, made out from records."""

from hypothesis import given
from hypothesis import strategies as st

from nsml.v1 import nodes_pb2
from nsml.v1 import sessions_pb2 as pb
from nsml.view.events import PlatformEvent, newest, of_cluster, of_node, of_session


def told(happenings):
    return [(one.at, one.what, one.words) for one in newest(happenings)]


def test_a_session_tells_its_life_newest_first():
    one = pb.Session(name="kim/mnist/1", state=pb.SESSION_STATE_FAILED, attempt=2, memo="base")
    one.spec.resources.gpu_thousandths, one.spec.replica_count = 2_000, 2
    one.created_at.seconds, one.started_at.seconds, one.ended_at.seconds = 10, 20, 90
    one.replicas.add(node="b")
    lost = one.attempts.add(number=1, cause=pb.CAUSE_NODE_LOST, nodes=["a"])
    lost.placed_at.seconds, lost.ended_at.seconds = 15, 30
    last = one.attempts.add(number=2, cause=pb.CAUSE_PROGRAM_FAILED, nodes=["b"])
    last.placed_at.seconds, last.ended_at.seconds = 40, 90
    idle = one.episodes.add(kind=pb.EPISODE_KIND_IDLE, reason="0 %")
    idle.since.seconds, idle.until.seconds = 50, 60
    one.end.cause, one.end.exit_code = pb.CAUSE_PROGRAM_FAILED, 3
    assert told(of_session(one)) == [
        (90, "failed", "program failed: exit 3"),
        (60, "no more idle", ""),
        (50, "idle", "0 %"),
        (40, "placed", "attempt 2: b"),
        (30, "attempt ended", "attempt 1: a for 15s; node lost"),
        (20, "started", "b"),
        (10, "submitted", "2 GPUs on 2 nodes · base"),
    ]


def test_a_node_tells_who_drained_it_and_since_when_it_is_silent():
    one = nodes_pb2.Node(name="n1", state=nodes_pb2.NODE_STATE_SILENT)
    one.drain.asked_by, one.drain.reason, one.drain.asked_at.seconds = "kim", "new disks", 5
    one.last_contact_at.seconds = 9
    silent, drained = told(of_node(one))
    assert silent[:2] == (9, "silent")
    assert drained == (5, "drained", "by kim: new disks")
    assert told(of_node(nodes_pb2.Node(name="n2", state=nodes_pb2.NODE_STATE_READY))) == []


def test_a_cluster_tells_of_its_members_and_of_what_is_wrong():
    cluster = nodes_pb2.GetClusterResponse(leader="cp-1", term=4)
    up = cluster.members.add(name="cp-1", is_leader=True)
    up.started_at.seconds = 3
    wrong = cluster.conditions.add(name=nodes_pb2.CONDITION_NAME_HISTORY_GONE, meaning="no charts")
    wrong.since.seconds = 7
    assert told(of_cluster(cluster)) == [
        (7, "condition", "no charts"),
        (3, "control plane up", "now leads term 4"),
    ]


@given(st.lists(st.floats(0, 1e9)), st.integers(1, 5))
def test_of_many_the_newest_are_shown_in_their_order(moments, most):
    shown = newest((PlatformEvent(at, "x", "y", "") for at in moments), most)
    assert [one.at for one in shown] == sorted(moments, reverse=True)[:most]
