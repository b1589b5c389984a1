"""What a node's row says when there is little to say."""

from nsml.v1 import nodes_pb2
from nsml.view import nodes

NOW = 1_700_000_000.0


def cells(node):
    return {column.key: column.cell(node, NOW) for column in nodes.COLUMNS}


def test_a_node_that_was_never_heard_has_no_time_of_contact():
    node = nodes_pb2.Node(name="a")
    assert cells(node)["contact"] == "-"
    assert nodes.record(node)["last_contact_at"] is None


def test_a_node_that_was_heard_says_how_long_ago():
    node = nodes_pb2.Node(name="a")
    node.last_contact_at.FromSeconds(int(NOW) - 120)
    assert cells(node)["contact"] == "2 minutes ago"


def test_what_was_not_measured_is_no_zero():
    node = nodes_pb2.Node(name="a")
    node.capacity.memory_bytes = 8 << 30
    shown, record = cells(node), nodes.record(node)
    assert (shown["load"], shown["memory"]) == ("-", "-/8.0 GiB")
    assert (record["cpu_percent"], record["memory_used_bytes"]) == (None, None)
