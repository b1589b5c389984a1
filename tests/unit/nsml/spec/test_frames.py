"""Messages in a stream, cut anywhere."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml.spec.frames import MOST_BYTES, Frames, NotFrames, framed


@given(st.lists(st.binary(max_size=60), max_size=8), st.lists(st.integers(0, 500), max_size=9))
def test_they_come_out_as_they_went_in_wherever_the_stream_is_cut(messages, cuts):
    stream = b"".join(map(framed, messages))
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut <= len(stream))})
    frames = Frames()
    found = [one for start, end in pairwise(edges) for one in frames.feed(stream[start:end])]
    assert found == messages
    assert frames.is_between


def test_a_part_is_no_message():
    frames = Frames()
    assert list(frames.feed(framed(b"whole")[:-1])) == []
    assert not frames.is_between


def test_one_that_is_too_long_is_refused_before_it_comes():
    assert list(Frames().feed(framed(bytes(MOST_BYTES)))) == [bytes(MOST_BYTES)]
    with pytest.raises(NotFrames):
        list(Frames().feed(framed(bytes(MOST_BYTES + 1))[:4]))
