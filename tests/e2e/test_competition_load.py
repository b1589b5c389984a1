"""A competition with many submissions and watchers: every score, rank and answer is right."""

import pytest

from bench.competition import Sizes, run

SMALL = Sizes(
    users=3, models=12, submissions=14, watchers=8, alone=1, watcher_processes=2, cpus=0.25
)
TENTH = Sizes(users=10, models=500, submissions=400, watchers=20)
"""A tenth of the benchmark."""


@pytest.mark.long("15 submissions, each of two sessions, while 8 clients watch their board")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param(SMALL, id="small"),
        pytest.param(TENTH, marks=pytest.mark.variant, id="a-tenth"),
    ],
)
def test_every_score_and_rank_is_right_while_many_watch(sizes: Sizes) -> None:
    outcome = run(sizes)
    assert outcome.wrong == []
    # Half of the watchers watch the whole board, and each of them saw every submission.
    assert outcome.figures["pairs"] >= sizes.submissions * sizes.watchers // 2
