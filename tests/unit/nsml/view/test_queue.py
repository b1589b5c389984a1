"""The words of the queue that the scheduler and its viewers share."""

from __future__ import annotations

import pytest

from controlplane.scheduler import explain
from nsml.view.queue import nodes_text


@pytest.mark.parametrize("what", explain.OF_ONE_AND_OF_SEVERAL)
@pytest.mark.parametrize("count", [1, 3])
def test_what_counts_of_nodes_say_is_said_as_the_scheduler_says_it(what: str, count: int) -> None:
    said = explain.OF_ONE_AND_OF_SEVERAL[what][count > 1]
    assert nodes_text(what, count) == f"{count} {said}"


@pytest.mark.parametrize(
    ("what", "count", "text"),
    [
        ("GPUs", 1, "1 is short of GPUs"),
        ("memory", 2, "2 are short of memory"),
        ("GPUs and cores and memory", 1, "1 is short of GPUs, cores and memory"),
        ("GPUs and cores", 2, "2 are short of GPUs and cores"),
        ("drained", 1, "1 is drained"),
        ("silent", 12, "12 are silent"),
        (
            "is held for a session ahead of it",
            2,
            "2 are held for a session ahead of it",
        ),
        ("has room for some of its replicas", 1, "1 has room for some of its replicas"),
    ],
)
def test_counts_of_nodes_are_sentences(what: str, count: int, text: str) -> None:
    assert nodes_text(what, count) == text
