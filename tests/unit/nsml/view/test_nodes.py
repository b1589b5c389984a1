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
