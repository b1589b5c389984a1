"""Entries of boards for tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from controlplane.domain.boards.values import Entry

SCORES = st.none() | st.sampled_from([0.0, 0.25, 0.5, 1.0]) | st.floats()
ERRORS = st.none() | st.sampled_from([0.0, 0.01, 0.2]) | st.floats()
TIMES = st.integers(0, 5).map(float)


def entry(name: str, score: float | None, at: float = 0.0, **given: Any) -> Entry:
    """An entry of a user for himself; it was scored when it was submitted, unless something else is given."""
    values: dict[str, Any] = {"owner": "kim", "scored_at": at}
    return Entry(id=name, score=score, submitted_at=at, **{**values, **given})


def _entry(number: int, draw: tuple[Any, ...]) -> Entry:
    score, error, submitted, waited, owner, team, digest = draw
    return Entry(
        id=f"u{number}",
        owner=owner,
        team=team,
        score=score,
        submitted_at=submitted,
        scored_at=submitted + waited,
        standard_error=error,
        digest=digest,
    )


def entries_of(most: int = 12) -> st.SearchStrategy[list[Entry]]:
    """Entries of a few users in a few teams, with any scores."""
    one = st.tuples(
        SCORES,
        ERRORS,
        TIMES,
        TIMES,
        st.sampled_from(["kim", "lee", "park"]),
        st.sampled_from(["", "vision", "kim"]),
        st.sampled_from(["", "d1", "d2"]),
    )
    return st.lists(one, max_size=most).map(
        lambda drawn: [_entry(number, draw) for number, draw in enumerate(drawn)]
    )
