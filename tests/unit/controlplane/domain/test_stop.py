"""Stops: until when what is stopped is there at most."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.values import Stop

NOW = 1_800_000_000.0
spans = st.integers(0, 3600)


def test_notice_and_grace_count_from_when_it_was_asked() -> None:
    asked = Stop(grace_s=10.0, notice_s=60.0).since(NOW)
    assert (asked.asked_at, asked.ends_by) == (NOW, NOW + 70)


def test_a_stop_that_says_not_since_when_has_no_end_that_is_known() -> None:
    old = Stop(grace_s=10.0, notice_s=60.0)
    assert old.ends_by == 0.0
    assert Stop(grace_s=5.0).since(NOW, old).ends_by == NOW + 5


@given(spans, spans, spans, spans, spans)
def test_a_later_stop_ends_it_by_its_own_words_or_as_an_earlier_one_does(
    notice_s: int, grace_s: int, after_s: int, later_notice_s: int, later_grace_s: int
) -> None:
    earlier = Stop(grace_s=grace_s, notice_s=notice_s).since(NOW)
    wish = Stop(grace_s=later_grace_s, notice_s=later_notice_s, reason="now")
    later = wish.since(NOW + after_s, earlier)
    assert (later.grace_s, later.notice_s, later.reason) == (later_grace_s, later_notice_s, "now")
    assert later.ends_by == min(earlier.ends_by, wish.since(NOW + after_s).ends_by)
    assert earlier.since(NOW + after_s, earlier) == earlier, "the same again changes nothing"
