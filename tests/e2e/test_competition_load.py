"""A competition with many submissions and watchers: every score, rank and answer is right."""

import pytest

from bench.competition import Sizes, run


@pytest.mark.long("45 submissions, each of two sessions, while 20 clients watch their board")
def test_every_score_and_rank_is_right_while_many_watch() -> None:
    outcome = run(Sizes(users=10, models=100, submissions=40, watchers=20))
    assert outcome.wrong == []
    # Every watcher of the whole board saw every submission.
    assert outcome.figures["pairs"] >= 40 * 10
