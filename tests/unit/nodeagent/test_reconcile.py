"""What should run against what runs."""

from nodeagent.reconcile import _by_id
from nsml.v1 import agents_pb2 as pb
from tests.support.scripted_platform import assignment, session_id


def test_what_is_kept_of_orders_does_not_keep_all_of_them() -> None:
    """A part of a message shares its memory, and shows it by changing with it."""
    orders = pb.Orders(assignments=[assignment(session_id(1)), assignment(session_id(2))])
    kept = list(_by_id(orders.assignments).values())
    orders.assignments[0].session_name = orders.assignments[1].session_name = "changed"
    assert all(one.session_name != "changed" for one in kept)
