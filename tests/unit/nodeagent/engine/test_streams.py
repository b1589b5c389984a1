"""The output of a container, in whole lines."""

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.engine.streams import LONGEST_LINE, whole_lines

PIECES = st.one_of(
    st.tuples(st.text("o\n", max_size=4).map(str.encode), st.none()),
    st.tuples(st.none(), st.text("e\n", max_size=4).map(str.encode)),
)


@given(st.lists(PIECES))
def test_lines_of_two_streams_are_never_mixed(
    frames: list[tuple[bytes | None, bytes | None]],
) -> None:
    said = b"".join(whole_lines(frames)).split(b"\n")
    for stream, letter in enumerate((b"o", b"e")):
        expected = b"".join(frame[stream] or b"" for frame in frames).split(b"\n")
        assert [line for line in said if letter in line] == [line for line in expected if line]


def test_an_endless_line_is_passed_on() -> None:
    def frames() -> Iterator[tuple[bytes | None, bytes | None]]:
        for _ in range(LONGEST_LINE // 1000 + 1):
            yield None, b"x" * 1000
        raise AssertionError("it waits for the line's end")

    assert len(next(whole_lines(frames()))) > LONGEST_LINE
