"""Names of what is built again from the same requirements."""

from __future__ import annotations

import pytest

from nodeagent.environments.generations import last_of, next_of


@pytest.mark.parametrize(
    ("names", "last"),
    [
        ([], None),
        (["k"], "k"),
        (["k", "k.2"], "k.2"),
        (["k.10", "k.9", "k"], "k.10"),
        (["k.2"], "k.2"),
        (["kk", "kk.3", "k.3-mark", "k.x", "k.", "k.2.3", "other.7"], None),
    ],
)
def test_the_last_one_counts(names: list[str], last: str | None) -> None:
    assert last_of("k", names) == last


def test_the_next_is_beside_the_last() -> None:
    assert next_of("k", None) == "k"
    assert next_of("k", "k") == "k.2"
    assert next_of("k", "k.9") == "k.10"
