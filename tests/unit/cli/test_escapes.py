"""What is typed for `nsml sh` itself, however it comes in pieces."""

import pytest

from cli.sessions.escapes import Escapes, Leave


def taken(*pieces):
    escapes = Escapes()
    return b"".join(map(escapes.taken, pieces))


@pytest.mark.parametrize(
    ("typed", "passed"),
    [
        (b"ls\r", b"ls\r"),
        (b"cd ~\r", b"cd ~\r"),
        (b"cd ~.\r", b"cd ~.\r"),
        (b"~~.\r", b"~.\r"),
        (b"~a\r", b"~a\r"),
        (b"\r~\r", b"\r~\r"),
        (b"~?x\r", b"x\r"),
        (b"a~~\r", b"a~~\r"),
        (b"", b""),
        (bytes(range(256)), bytes(range(256))),
    ],
)
def test_what_is_for_the_program_comes_whole_and_at_once_or_byte_by_byte(typed, passed):
    assert taken(typed) == passed
    assert taken(*(bytes((one,)) for one in typed)) == passed


@pytest.mark.parametrize("pieces", [(b"~.",), (b"ls\r~.",), (b"ls\n", b"~", b"."), (b"~?", b"~.")])
def test_at_the_beginning_of_a_line_it_leaves(pieces):
    with pytest.raises(Leave):
        taken(*pieces)


def test_help_is_told_once():
    escapes = Escapes()
    escapes.taken(b"~?")
    assert "disconnect" in escapes.said
    escapes.taken(b"x")
    assert escapes.said == ""
