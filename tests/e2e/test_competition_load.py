"""A competition with many submissions and watchers: every score, rank and answer is right."""

import pytest

from bench.competition import Sizes, run


@pytest.mark.long("65 submissions, each of two sessions, while 20 clients watch their board")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("submissions", [60, pytest.param(400, marks=pytest.mark.variant)])
def test_every_score_and_rank_is_right_while_many_watch(submissions: int) -> None:
    """A tenth of the benchmark; only the second form has a tenth of its submissions, too."""
    outcome = run(Sizes(users=10, models=500, submissions=submissions, watchers=20))
    assert outcome.wrong == []
    # Every watcher of the whole board saw every submission.
    assert outcome.figures["pairs"] >= submissions * 10
