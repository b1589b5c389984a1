"""How it stands with receiving something: never old as new, and never silent about it."""

from hypothesis import given
from hypothesis import strategies as st

from nsml.client.streams import Link
from tui.sources import STALE_S, Source, State

DOWN = Link(is_live=False, failures=3, retry_in_s=2.0, reason="connect failed:\n  addr: x")


def test_from_nothing_to_live_to_broken_and_back():
    source = Source()
    assert (source.state(100), source.words(100)) == (State.LOADING, "loading...")
    source = source.received(100)
    assert (source.state(1e6), source.words(1e6)) == (State.LIVE, "")
    source = source.linked(DOWN, 110)
    assert source.state(133) is State.OFFLINE
    words = source.words(111)
    assert "unreachable for 1s" in words
    assert "data from 01-01 00:01:50Z" in words
    assert "data from 01-01 00:00:20Z" in source.words(111, shown_of=20)
    assert "try 3 in 1s" in words
    assert "\n" not in words
    assert "try 3 now" in source.words(133)
    assert source.linked(DOWN, 120).broken_at == 110
    assert source.linked(Link(is_live=True), 130).state(131) is State.LIVE
    assert source.received(130).state(131) is State.LIVE


def test_what_was_never_received_is_not_said_to_be_of_a_moment():
    assert "shown" not in Source().linked(DOWN, 10).words(11)


def test_silence_of_what_is_asked_again_is_told():
    source = Source(is_polled=True).received(100)
    assert source.state(100 + STALE_S) is State.LIVE
    assert source.state(101 + STALE_S) is State.STALE
    assert "01-01 00:01:40Z" in source.words(101 + STALE_S)
    assert source.received(200).state(201) is State.LIVE


def test_a_clock_that_is_set_back_makes_nothing_new_and_holds_nothing_back():
    source = Source(is_polled=True).received(5_000)
    assert source.state(1_400) is State.STALE
    assert source.received(1_400).state(1_401) is State.LIVE
    stream = Source().received(5_000).linked(DOWN, 5_001)
    assert stream.state(1_400) is State.OFFLINE
    assert stream.answered(1_400).state(1_400) is State.LIVE


def test_what_nobody_listened_to_for_a_while_is_loading_and_old_once_it_could_have_answered():
    source = Source(is_polled=True).received(100).asked(200)
    assert source.state(200.5) is State.LOADING
    assert source.state(202) is State.STALE
    assert source.received(200.6).state(201) is State.LIVE
    assert source.linked(DOWN, 200.5).state(200.6) is State.OFFLINE
    assert Source().received(100).asked(200).state(300) is State.LOADING


def test_a_stream_that_was_opened_again_and_is_silent_is_not_said_to_be_broken():
    source = Source().received(90).linked(DOWN, 100)
    assert source.answered(101).state(101) is State.OFFLINE
    assert source.answered(103.5).state(104) is State.LIVE
    assert source.answered(103.5).received_at == 90
    assert Source().answered(1) == Source()


def test_a_refusal_stands_until_something_is_received():
    source = Source().refused("not for you", 1)
    assert (source.state(1), source.words(1)) == (State.DENIED, "not for you")
    assert source.received(2).state(3) is State.LIVE


def test_what_was_received_of_a_stream_is_known_to_be_so_until_it_was_refused():
    source = Source().received(90).refused("not for you", 100)
    words = source.words(200, shown_of=source.true_at)
    assert words.startswith("not for you · data from ")
    assert source.true_at == 100
    again = source.answered(102).refused("not for you", 110)
    assert (again.true_at, again.words(200, shown_of=again.true_at)) == (100, words)


@given(
    st.lists(
        st.one_of(
            st.just("received"),
            st.just("refused"),
            st.builds(Link, is_live=st.booleans(), reason=st.text()),
        )
    )
)
def test_words_are_there_if_and_only_if_it_is_not_live(steps):
    source = Source()
    for at, step in enumerate(steps, 1):
        if step == "received":
            source = source.received(at)
        elif step == "refused":
            source = source.refused("no", at)
        else:
            source = source.linked(step, at)
        assert bool(source.words(at)) is (source.state(at) is not State.LIVE)
