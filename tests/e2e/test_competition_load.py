"""A competition with many submissions and watchers, a tenth of the benchmark's: every score, rank and answer is right."""

import pytest

from bench.competition import Sizes, run


@pytest.mark.long("405 submissions, each of two sessions, while 20 clients watch their board")
def test_every_score_and_rank_is_right_while_many_watch() -> None:
    outcome = run(Sizes(users=10, models=500, submissions=400, watchers=20))
    assert outcome.wrong == []
    # Every watcher of the whole board saw every submission.
    assert outcome.figures["pairs"] >= 400 * 10
