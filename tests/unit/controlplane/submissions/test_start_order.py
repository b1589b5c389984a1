"""Which submissions start their prediction next."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from controlplane.history.board_values import SubmissionRow
from controlplane.submissions.start_order import MOST_QUEUED, next_predictions


def submission(number: int, owner: str = "lee", dataset: str = "digits") -> SubmissionRow:
    return SubmissionRow(
        id=f"{dataset}{number}",
        owner=owner,
        dataset_owner="kim",
        dataset=dataset,
        dataset_version=1,
        session_id="s",
        session="lee/digits/1",
        checkpoint="1",
        submitted_at=float(number),
    )


def evaluated(number: int, dataset: str = "digits") -> SubmissionRow:
    return replace(submission(number, dataset=dataset), prediction_digest="d", owner="max")


def test_the_queue_of_sessions_has_few_of_them() -> None:
    new = [submission(number) for number in range(100)]
    assert next_predictions(new, ()) == new[:MOST_QUEUED]
    begun = [(submission(200 + number), number < 30) for number in range(50)]
    assert next_predictions(new, begun) == new[: MOST_QUEUED - 30]


def test_participants_take_turns() -> None:
    new = [submission(number, "lee") for number in range(60)]
    new += [submission(100 + number, "ann") for number in range(2)]
    chosen = next_predictions(new, [(submission(200, "lee"), False)])
    assert [one.owner for one in chosen[:4]] == ["ann", "lee", "ann", "lee"]
    assert len(chosen) == MOST_QUEUED


def test_nobody_waits_for_the_queue_of_another() -> None:
    begun = [(submission(number, "lee"), True) for number in range(MOST_QUEUED)]
    new = [submission(100, "lee"), submission(101, "ann"), submission(102, "ann")]
    assert next_predictions(new, begun) == [new[1]]


def test_no_prediction_begins_while_many_evaluations_wait() -> None:
    begun = [(evaluated(number), True) for number in range(MOST_QUEUED)]
    other = submission(1, "ann", dataset="letters")
    assert next_predictions([submission(100, "ann"), other], begun) == [other]
    begun[0] = begun[0][0], False
    assert next_predictions([submission(100, "ann")], begun) == [submission(100, "ann")]


@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["a", "b"])), max_size=120),
    st.lists(
        st.tuples(st.integers(0, 4), st.booleans(), st.booleans()),
        max_size=60,
    ),
)
def test_each_has_one_and_of_the_others_there_are_few(
    new: list[tuple[int, str]], begun: list[tuple[int, bool, bool]]
) -> None:
    rows = [submission(at, f"user{owner}", dataset) for at, (owner, dataset) in enumerate(new)]
    known = [
        (
            replace(
                submission(1000 + at, f"user{owner}", "a"),
                prediction_digest="d" if has_predicted else "",
            ),
            is_queued,
        )
        for at, (owner, has_predicted, is_queued) in enumerate(begun)
    ]
    chosen = next_predictions(rows, known)
    assert len({one.id for one in chosen}) == len(chosen)
    assert all(one in rows for one in chosen)
    predicting = {one.owner for one, _ in known if not one.prediction_digest}
    evaluations = sum(is_queued for one, is_queued in known if one.prediction_digest)
    for dataset in ("a", "b"):
        of_it = [one for one in chosen if one.dataset == dataset]
        if dataset == "a" and evaluations >= MOST_QUEUED:
            assert of_it == []
            continue
        have = {one.owner for one in rows if one.dataset == dataset}
        owed = have - (predicting if dataset == "a" else set())
        assert owed <= {one.owner for one in of_it}
        queued = sum(is_queued for _, is_queued in known) if dataset == "a" else 0
        assert len(of_it) <= max(len(owed), MOST_QUEUED - queued)
        # Of each participant, the oldest; and of two who wait, none has two more than the other.
        for owner, count in Counter(one.owner for one in of_it).items():
            own = [one for one in rows if one.dataset == dataset and one.owner == owner]
            assert [one for one in of_it if one.owner == owner] == own[:count]
