"""Sizes on disk are in powers of 1000, whatever it is that has them."""

import pytest

from nsml.v1.nodes_pb2 import NodeImage
from nsml.v1.resources_pb2 import NodeEnvironment
from nsml.view import environments, images

SIZE = 3_500_000


@pytest.mark.parametrize(
    ("columns", "item"),
    [
        (images.COLUMNS, images.ImageOnNode(node="n", image=NodeImage(bytes=SIZE))),
        (
            environments.COLUMNS,
            environments.OnNode(node="n", environment=NodeEnvironment(bytes=SIZE)),
        ),
    ],
)
def test_what_nodes_keep_has_the_units_of_other_data(columns, item):
    [size] = [one.cell(item, 0.0) for one in columns if one.key == "size"]
    assert size == "3.5 MB"
