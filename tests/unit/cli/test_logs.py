"""logs: by time, by rank, with times, to terminals and to pipes."""

import pytest

from cli.sessions import logs
from nsml.common.text import width
from nsml.v1 import sessions_pb2 as pb
from nsml.view import terminal_output as overwriting
from tests.support.zones import zone


def moment(second):
    return f"2023-11-14T22:13:{20 + second:02}"


def gang(state):
    session = state.add("kim/mnist/1", pb.SESSION_STATE_SUCCEEDED)
    session.spec.replica_count = 2
    state.put(session)
    return session


@pytest.fixture
def session(state):
    session = state.add("kim/mnist/1", pb.SESSION_STATE_SUCCEEDED)
    state.log(session, b"one\ntwo\nthree\n")
    return session


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("--since", moment(4)), "two\nthree\n"),
        (("--since", moment(4) + "+00:00", "--until", moment(8)), "two\n"),
        (("--until", "2023-11-15T07:13:24+09:00"), "one\n"),
        (("--since", moment(4), "--tail", "1"), "three\n"),
        (("--since", moment(8), "--tail", "9"), "three\n"),
        (("--since", "2150-01-01"), ""),
    ],
)
def test_a_span_of_time(nsml, session, words, shown):
    assert nsml("logs", *words, "@last").stdout == shown


def test_a_time_without_a_zone_is_local(nsml, session):
    with zone("Asia/Seoul"):
        local = "2023-11-15T07:13:24"
        assert nsml("logs", "--since", local, "@last").stdout == "two\nthree\n"
        assert nsml("logs", "--until", local, "@last").stdout == "one\n"
        shown = nsml("logs", "-t", "--since", local, "--tail", "1", "@last").stdout
        assert shown == "2023-11-15T07:13:28.000+09:00 three\n"
        again = nsml("logs", "--since", shown.split()[0], "@last").stdout
        assert again == "three\n"
        for words in (("--utc", "logs"), ("logs", "--utc")):
            since = nsml(*words, "-t", "--since", moment(4), "@last").stdout
            assert since == f"{moment(4)}.000Z two\n{moment(8)}.000Z three\n"
        assert nsml("logs", "--since", moment(4), "--utc", "@last").stdout == "two\nthree\n"
        assert nsml("logs", "--since", local, "@last").stdout == "two\nthree\n", "as before"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--since", "2150-01-01"), "no line is of that time\n"),
        (("--until", moment(0)), "no line is of that time\n"),
        (("--since", "2150-01-01", "-t", "--rank", "all"), "no line is of that time\n"),
        (("--since", moment(4)), ""),
        (("--since", moment(4), "--tail", "0"), ""),
    ],
)
def test_a_time_without_a_line_is_told(nsml, session, words, said):
    assert nsml("logs", *words, "@last").stderr == said


def test_of_one_that_printed_nothing_that_is_told(nsml, state):
    state.add("kim/mnist/8", pb.SESSION_STATE_SUCCEEDED)
    assert nsml("logs", "@last").stderr == "nothing was printed\n"
    assert nsml("logs", "@last", "--tail", "0").stderr == ""
    state.add("kim/mnist/9")
    assert nsml("logs", "@last").stderr == ""


@pytest.mark.parametrize(
    ("words", "before"), [((), b""), (("-t",), moment(0).encode() + b".000Z "), (("-n",), b"1:")]
)
def test_what_is_before_lines_does_not_change_their_bytes(nsml, state, words, before):
    line = b"\x1b[31mred\x1b[0m \xff\x0b\n"
    state.log(state.add("kim/mnist/1", pb.SESSION_STATE_SUCCEEDED), line)
    searched = ("--grep", "red") if words == ("-n",) else ()
    assert nsml("logs", *words, *searched, "@last").bytes == before + line
    shown = nsml("logs", *words, *searched, "@last", terminal=True, NO_COLOR="1").bytes
    assert b"\x1b" not in shown


BAR = b"".join(b"\rloss: %d %s" % (number, b"#" * number) for number in range(300)) + b"\n"


@pytest.mark.parametrize("words", [(), ("-f",), ("--tail", "3"), ("--grep", "loss")])
def test_of_a_progress_bar_the_last_state_is_shown(nsml, state, words):
    session = state.add("kim/mnist/1", pb.SESSION_STATE_SUCCEEDED)
    state.piece = 1_000
    state.log(session, b"begin\r\n" + BAR + b"50%\x1b[K\b\b\b\xff100%\ndone")
    last = b"loss: 299 %s\n" % (b"#" * 299)
    begin = b"" if words[:1] in {("--tail",), ("--grep",)} else b"begin\r\n"
    rest = b"" if "--grep" in words else b"\xff100%\ndone"
    assert nsml("logs", *words, "@last").bytes == begin + last + rest
    shown = nsml("logs", *words, "@last", terminal=True, TERM="dumb").stdout
    assert [line[:9] for line in shown.splitlines() if "loss" in line] == ["loss: 299"]
    raw = nsml("logs", *words, "--raw", "@last", terminal=True).bytes
    assert raw.count(b"loss") == 300


def test_a_followed_line_is_redrawn_in_place(nsml, state, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    session = state.add("kim/mnist/1", pb.SESSION_STATE_SUCCEEDED)
    state.piece = 100
    state.log(session, b"begin\n" + BAR + b"done\n")
    shown = nsml("logs", "-f", "@last", terminal=True, TERM="xterm").stdout
    screen = overwriting.Screen()
    screen.feed(shown.replace("\r\n", "\n"))
    lines = screen.texts("")[0]
    assert lines == ["begin", "loss: 299 " + "#" * 299, "done", ""]
    open_states = [line for line in shown.split("\x1b[J") if "\n" not in line]
    assert len(open_states) > 10
    assert max(map(len, open_states)) < 45, "a state that wraps cannot be drawn over"


def test_a_match_in_a_long_line_is_shown(nsml, state, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    session = state.add("kim/mnist/1", pb.SESSION_STATE_SUCCEEDED)
    state.log(session, b"x" * 500 + b" needle " + "가".encode() * 500 + b"\nshort needle\n")
    shown = nsml("logs", "--grep", "needle", "@last", terminal=True).stdout
    long, short = shown.splitlines()
    assert 155 <= width(long) <= 160
    assert 60 < long.index("needle") < 100
    assert short == "short needle"
    assert len(nsml("logs", "--grep", "needle", "@last").stdout) > 1_000, "a program gets all of it"
    assert len(nsml("logs", "--grep", "needle", "--raw", "@last", terminal=True).stdout) > 1_000


def test_the_state_with_the_match_is_shown(nsml, state):
    session = state.add("kim/mnist/1", pb.SESSION_STATE_SUCCEEDED)
    state.log(session, b"\rloss 1\rloss nan\rloss 3.5\n")
    assert nsml("logs", "--grep", "nan", "@last").stdout == "loss nan\n"
    assert nsml("logs", "--grep", "loss", "@last").stdout == "loss 3.5\n"


def test_of_one_that_waits_it_is_said_why(nsml, state):
    state.add("kim/mnist/2", pb.SESSION_STATE_QUEUED, waiting="needs 4 GPUs on one node")
    found = nsml("logs", "@last")
    assert (found.code, found.stdout) == (0, "")
    assert found.stderr == "kim/mnist/2 queued: needs 4 GPUs on one node\n"


def test_ages_are_counted_by_the_platform(nsml, session, server):
    nsml("logs", "--since", "1h30m", "--until", "90s", "@last")
    [request] = [one for one in server.state.log_requests if one.HasField("since_age")]
    assert (request.since_age.seconds, request.until_age.seconds) == (5400, 90)


def test_times_are_those_of_the_lines(nsml, session, server):
    server.state.piece = 5  # a line in several pieces has the time at which it began
    shown = nsml("logs", "-t", "@last").stdout
    assert shown == (f"{moment(0)}.000Z one\n{moment(4)}.000Z two\n{moment(8)}.000Z three\n")


def test_all_ranks_with_their_names(nsml, state):
    session = gang(state)
    state.log(session, b"first\n")
    state.log(session, b"second\nand more", rank=1)
    expected = "rank 0 | first\nrank 1 | second\nrank 1 | and more\n"
    assert nsml("logs", "--rank", "all", "@last").stdout == expected
    followed = nsml("logs", "-f", "--rank", "all", "@last")
    assert sorted(followed.stdout.splitlines()) == sorted(expected.splitlines())
    assert followed.stderr.count("Succeeded") == 1
    assert nsml("logs", "--rank", "1", "@last").stdout == "second\nand more"
    state.log(state.add("kim/mnist/2", pb.SESSION_STATE_SUCCEEDED), b"other\n")
    both = nsml("logs", "--rank", "all", "kim/mnist/1", "kim/mnist/2").stdout
    assert "kim/mnist/1 rank 1 | and more\n" in both
    assert "kim/mnist/2        | other\n" in both


def test_several_logs_come_in_the_order_of_their_times(nsml, state):
    one, two = (state.add(f"kim/mnist/{number}", pb.SESSION_STATE_SUCCEEDED) for number in (1, 2))
    state.log(one, b"at 0\nat 5\nat 10\nat 16\n")
    state.log(two, b"0\n2\nthis one is at 4\nat 21\n")
    state.lost[two.id, 1] = 7
    result = nsml("logs", "-t", one.name, two.name)
    expected = [
        f"kim/mnist/{number} | {moment(at)}.000Z {text}\n"
        for number, at, text in [
            (1, 0, "at 0"),
            (2, 0, "0"),
            (2, 2, "2"),
            (2, 4, "this one is at 4"),
            (1, 5, "at 5"),
            (1, 10, "at 10"),
            (1, 16, "at 16"),
            (2, 21, "at 21"),
        ]
    ]
    assert result.stdout == "".join(expected)
    assert result.stderr == "(lost: 7 bytes of the output)\n"
    state.piece = 3
    assert nsml("logs", "-t", one.name, two.name).stdout == "".join(expected)
    found = nsml("logs", "-t", "--grep", "at", one.name, two.name).stdout
    assert found == "".join(line for line in expected if "at" in line)
    found = nsml("logs", "--grep", "16", "-n", one.name, two.name)
    assert (found.stdout, found.stderr) == (
        "kim/mnist/1 | 4:at 16\n",
        f"{two.name}: no line fits\n",
    )
    last = nsml("logs", "-t", "--tail", "2", one.name, two.name).stdout
    assert last == "".join([expected[3], *expected[5:]])


async def test_each_log_keeps_its_own_order():
    shown = []

    async def log(name, *moments):
        for number, when in enumerate(moments):
            yield logs.Run(when, lambda text=f"{name}{number}": shown.append(text))

    await logs._in_order([log("a", 5.0, 1.0, 7.0), log("b"), log("c", 4.0, 4.0, 6.0)])
    assert shown == ["c0", "c1", "a0", "a1", "c2", "a2"]


def test_a_line_without_an_end_is_shown_in_parts(nsml, state, monkeypatch):
    session = gang(state)
    monkeypatch.setattr(logs, "_LONGEST_LINE", 10_000)
    state.piece = 10_000
    state.log(session, b"x" * 30_000)
    for words in (("--rank", "all"), ("-t",)):
        lines = nsml("logs", *words, "@last").stdout.splitlines()
        assert max(map(len, lines)) < 22_000
        assert sum(line.count("x") for line in lines) == 30_000


def test_what_is_found(nsml, session, state):
    assert nsml("logs", "--grep", "t", "@last").stdout == "two\nthree\n"
    shown = nsml("logs", "--grep", "t", "-t", "-n", "@last").stdout
    assert shown == f"{moment(4)}.000Z 2:two\n{moment(8)}.000Z 3:three\n"
    words = ("--grep", "tw", "-i", "-F", "-v", "-C", "2", "--since", "1h", "--rank", "0")
    assert nsml("logs", *words, "-n", "@last").stdout == "1-one\n2:two\n3-three\n"
    asked = state.searches[-1]
    assert (asked.ignore_case, asked.literal, asked.invert, asked.context_lines) == (
        True,
        True,
        True,
        2,
    )
    assert asked.log.since_age.seconds == 3600
    result = nsml("logs", "--grep", "nothing", "@last")
    assert (result.stdout, result.stderr) == ("", "no line fits\n")


def test_a_search_goes_on_where_it_broke_off(nsml, session, state):
    state.breaks_off = 2
    assert nsml("logs", "--grep", "e", "-n", "@last").stdout == "1:one\n3:three\n"
    assert [(one.log.offset, one.line) for one in state.searches] == [(0, 0), (4, 2), (8, 3)]


def test_what_is_found_of_all_ranks_is_safe_to_show(nsml, state):
    session = gang(state)
    state.log(session, b"\x1b]0;t\x07 one\nno\n", rank=1)
    shown = nsml("logs", "--rank", "all", "--grep", "one", "@last", terminal=True, NO_COLOR="1")
    assert shown.stdout == "rank 1 | ␛]0;t␇ one\n"
    assert nsml("logs", "--rank", "1", "--grep", "one", "@last").bytes == b"\x1b]0;t\x07 one\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--since", "10"), "10 lacks its unit"),
        (("--since", "yesterday"), "'yesterday' is not a time"),
        (("--since", "2023-13-01"), "'2023-13-01' is not a time"),
        (("--until", "0001-01-01T00:00+14:00"), "nothing was printed in the year 1"),
        (("--since", "-5m"), "is not a duration"),
        (("-f", "--until", "5m"), "--until with -f"),
        (("-i",), "with --grep PATTERN"),
        (("--since", "1m", "--until", "10m"), "--until is before --since"),
        (("--since", "2030-01-01", "--until", "1m"), "--until is before --since"),
        (("--grep", "x", "-C", "101"), "100 is the most"),
        (("--rank", "some"), "'some' is not a whole number"),
    ],
)
def test_what_is_no_time_is_refused(nsml, session, words, said):
    result = nsml("logs", *words, "@last", check=False)
    assert result.code == 2
    assert said in result.stderr


@pytest.mark.parametrize("flags", [(), ("-f",), ("--grep", "new")])
def test_earlier_attempts_are_named_with_the_command_that_shows_them(nsml, state, flags):
    session = state.add("kim/mnist/1", pb.SESSION_STATE_SUCCEEDED)
    state.log(session, b"old\n", attempt=1)
    session.attempt = 2
    state.log(session, b"new\n", attempt=2)
    shown = nsml("logs", "@last", *flags)
    assert shown.stdout == "new\n"
    words = "(log of attempt 2; earlier: nsml logs kim/mnist/1 --attempt 1)"
    assert words in shown.stderr
    assert nsml("logs", "@last", "--attempt", "1").stdout == "old\n"
    assert "earlier" not in nsml("logs", "@last", "--attempt", "1").stderr
    session.attempt = 4
    assert "--attempt N   with N from 1 to 3)" in nsml("logs", "@last").stderr


def test_the_next_attempt_of_a_followed_log_begins_a_line_of_its_own_and_is_named(nsml, state):
    session = state.add("kim/mnist/1", pb.SESSION_STATE_SUCCEEDED)
    session.attempt = 1
    state.log(session, b"begun\n\r45%|###", attempt=1)
    state.log(session, b"again\n", attempt=2)

    class Requeues(dict):
        """Begins the next attempt while the output of the first is sent."""

        def pop(self, key, default):
            session.attempt = 2
            return super().pop(key, default)

    state.lost = Requeues()
    for flags, expected in (
        ((), "begun\n45%|###\nagain\n"),
        (("--raw",), "begun\n\r45%|###again\n"),
    ):
        session.attempt = 1
        shown = nsml("logs", "-f", "@last", *flags)
        assert shown.stdout == expected
        words = "(log of attempt 2; earlier: nsml logs kim/mnist/1 --attempt 1)"
        assert shown.stderr.count(words) == 1
