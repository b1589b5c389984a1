"""`nsml command`: a shell reads the line, and the same session is asked for again."""

import shlex
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nsml.common.shell import is_posix, operands, posix_line, shell_line, shell_split, shell_word
from nsml.spec.variables import with_values
from nsml.v1 import datasets_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.support.examples import examples
from tests.unit.cli.test_run import train

NASTY = ["", "-", "--", "-m", "--env", "--env=A=1", "-m x", "--env=A=1 x", "a b", "it's", '"']
NASTY += ["$HOME", "!!", "a!b's", "`id`", "\\", "\n", "a\nb\n", "\t", "\x1b[2J", "\x7f", "\x85"]
NASTY += ["\u202e", "~", "=ls", "{a,b}", "*", "é", "$'\\n'", "#", "\\'", "\r"]
TEXT = st.sampled_from(NASTY) | st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12
)
SHOWN = TEXT.filter(lambda text: any(map(str.isalnum, text)) and text.isprintable())
ENTRIES = ["main.py", "-odd.py", "two words.py", "it's $1!.py"]


def in_shell(line):
    """The words of a line that is pasted into bash, which replaces `!!` there, too."""
    script = f"set -H\nset -- {line}\nprintf '%s\\0' \"$@\" >&3\n"
    done = subprocess.run(
        ["/bin/sh", "-c", "exec bash --norc --noprofile -i 3>&1 1>/dev/null 2>/dev/null"],
        input=script.encode(errors="surrogateescape"),
        stdout=subprocess.PIPE,
        check=False,
        env={"HISTFILE": "/dev/null", "LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
        start_new_session=True,
    )
    return [word.decode(errors="surrogateescape") for word in done.stdout.split(b"\0")[:-1]]


def in_posix_shell(line):
    """The words of a line in the system's own shell: dash on Debian."""
    done = subprocess.run(
        ["/bin/sh", "-c", f"set -- {line}\nprintf '%s\\0' \"$@\""],
        stdout=subprocess.PIPE,
        check=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    return [word.decode(errors="surrogateescape") for word in done.stdout.split(b"\0")[:-1]]


@given(st.lists(TEXT | st.sampled_from(["\udcff", "a\udc80\udcffb", "\udce2\udc80"]), min_size=1))
def test_a_shell_reads_the_words_and_so_does_the_dashboard(words):
    line = shell_line(words)
    assert shell_split(line) == words
    assert not set(line) & set(map(chr, [*range(32), *range(127, 160), 0x202E, 0xDCFF]))
    assert in_shell(line) == words
    assert in_posix_shell(posix_line(line)) == words
    if is_posix(words):
        assert in_posix_shell(line) == words
    else:
        assert any(word.endswith("\n") for word in words)


def test_plain_words_are_not_quoted_and_none_is_a_program_of_zsh():
    assert shell_line(["nsml", "run", "-d", "mnist@2", "a/b.c"]) == "nsml run -d mnist@2 a/b.c"
    assert [shell_word("=ls"), shell_word("a b"), shell_word("a\tb")] == [
        "'='ls",
        "'a b'",
        "\"$(printf 'a\\tb')\"",
    ]
    assert shell_split(r"""a$'\x41\101\e\'\"\q'b '$'c "$'d'" """) == [
        "aAA\x1b'\"\\qb",
        "$c",
        "$'d'",
    ]
    assert operands("a", "-b") == ["--", "a", "-b"]
    with pytest.raises(ValueError, match="No closing quotation"):
        shell_split("a $'b")


FLAGS = {
    "-g": st.sampled_from(["0", "0.5", "2"]),
    "--gpu-model": SHOWN,
    "-c": st.sampled_from(["1", "0.001", "2.5"]),
    "--memory": st.integers(1 << 30, 1 << 50).map(str) | st.just("24G"),
    "--shm-size": st.just("64M"),
    "--disk": st.integers(1 << 30, 1 << 50).map(str),
    "--processes": st.just("64"),
    "--memo": TEXT,
    "-m": TEXT,
    "--nodes": st.just("2"),
    "--image": st.just("pytorch/pytorch:2.4.0"),
    "--time-limit": st.sampled_from(["90s", "1.5h", "0.1s", "1234567.25s"]),
    "--grace": st.sampled_from(["5s", "0.5s"]),
    "--retry": st.just("3"),
    "--pod": SHOWN,
    "--network": st.sampled_from(["own", "host", "none"]),
    "--priority": st.sampled_from(["idle", "low", "high"]),
    "--project": SHOWN,
    "-d": st.sampled_from(["mnist", "mnist@3"]),
    "--env": st.tuples(st.sampled_from("ABC"), TEXT).map("=".join),
    "--label": st.sampled_from(["stage=dev", "a/b.c-d=-x", "try=it's $HOME, 2=2"]),
    "--secret": st.sampled_from(["TOKEN", "TOKEN=B"]),
    "-a": st.lists(TEXT, max_size=3).map(shlex.join),
    "--patience": st.just("1s"),
    "--max-size": st.just("1G"),
}
SWITCHES = ["--preemptible", "--queue", "--public", "-q"]


@st.composite
def typed(draw):
    """The words behind `nsml run` of some flags, in some order, an entry or a command, and arguments."""
    flags = draw(st.lists(st.sampled_from(sorted(FLAGS)), unique=True))
    if {"-m", "--memo"} <= set(flags):
        flags.remove("-m")
    if "--gpu-model" in flags:
        flags = [flag for flag in flags if flag != "-g"]
    is_argv = draw(st.booleans())
    if is_argv and "-a" in flags:
        flags.remove("-a")
    words = [word for flag in flags for word in (flag, draw(FLAGS[flag]))]
    switches = draw(st.lists(st.sampled_from(SWITCHES), unique=True))
    # idle implies --preemptible: a line made from what the platform keeps has one of them
    words += [one for one in switches if one != "--preemptible" or "idle" not in words]
    arguments = draw(st.lists(TEXT, max_size=4))
    if is_argv:
        no_code = ["--no-code"] if draw(st.booleans()) else []
        return [*words, *no_code, "--argv", "--", "./train.sh", *arguments]
    words += ["-e", draw(st.sampled_from(ENTRIES))] if draw(st.booleans()) else []
    return [*words, "--", *arguments] if draw(st.booleans()) else words


def asked(state):
    session = state.sessions[max(state.sessions)]
    return session, (session.spec, session.memo, session.project, session.visibility)


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=typed())
def test_the_printed_line_asks_for_the_same(nsml, state, project, words):
    state.datasets[:] = [datasets_pb2.Dataset(name="mnist")]
    for name in ENTRIES:
        (project / name).touch()
    (project / "train.sh").touch(mode=0o755)
    nsml("run", *words)
    session, first = asked(state)
    session.command[:] = with_values(session.command, session.spec.environment)  # as for its owner
    for line in (nsml("command", session.name).stdout, made_from_the_spec(nsml, session)):
        program, command, *repeated = in_shell(line.removesuffix("\n"))
        assert (program, command) == ("nsml", "run")
        nsml("run", *repeated)
        again = asked(state)[1]
        assert again == first
    state.sessions.clear()


def made_from_the_spec(nsml, session):
    del session.command[:]
    return nsml("command", session.name).stdout


@pytest.mark.parametrize(
    ("words", "repeated"),
    [
        (["-fg0", "-m", "--wait"], ["-g", "0", "--memo=--wait"]),
        (["-fm-f", "--rm"], ["--memo=-f"]),
        (["-i", "-m", "--", "--", "-f"], ["--memo=--", "--", "-f"]),
        (["-f", "-a", "-f"], ["--args=-f"]),
        (["-f", "--env=A=-f", "-a", "--env=A=1 -f"], ["--env", "A", "--args=--env=A=1 -f"]),
    ],
)
def test_only_what_says_to_stay_is_left_out(nsml, state, project, words, repeated):
    thread = train(state, code=3)
    nsml("run", *words, check=False)
    thread.join()
    assert in_shell(nsml("command", "@last").stdout.strip())[2:] == repeated


def test_a_command_that_a_client_made_is_shown_as_it_is(nsml, state):
    state.add("kim/mnist/1", command=["nsml", "run", "-m", "a\nb\x1b[2J"], spec=pb.SessionSpec())
    shown = nsml("command", "@last", terminal=True)
    assert shown.stdout == "nsml run -m \"$(printf 'a\\nb\\033[2J')\"\n"
    assert shown.stderr == ""


def test_the_line_says_what_tags_and_last_meant_at_submission(nsml, state):
    spec = pb.SessionSpec(
        datasets=[
            pb.DatasetReference(name="mnist", version=3),
            pb.DatasetReference(name="kim/text", version=1),
            pb.DatasetReference(name="big", version=7, streamed=True),
        ],
        after=[pb.After(session="1a2b", name="kim/prepare/4", any_end=True)],
    )
    typed = ["-d", "mnist@gold", "--after", "@last:any", "-m", "of @last", "--dataset", "kim/text"]
    typed += ["--after", "3", "--stream", "big@v", "train.py", "--", "-d", "mnist@gold"]
    state.add("kim/mnist/1", command=["nsml", "run", *typed], spec=spec)
    assert nsml("command", "@last").stdout == (
        "nsml run -d mnist@3 -d kim/text@1 --after kim/prepare/4:any -m 'of @last'"
        " --stream big@7 train.py -- -d mnist@gold\n"
    )


def test_a_line_that_not_every_shell_reads_says_so(nsml, state):
    state.add("kim/mnist/1", command=["nsml", "run", "-m", "100%\n"], spec=pb.SessionSpec())
    shown = nsml("command", "@last")
    assert shown.stdout == "nsml run -m $'100%\\n'\n"
    assert "dash has no $'...'" in shown.stderr


@pytest.mark.parametrize(
    "words",
    [
        *(
            ["run", flag, "\udcff"]
            for flag in ("-m", "--pod", "--project", "-d", "--gpu-model", "--")
        ),
        ["run", "--env", "A=\udcff"],
        ["run", "-e", "\udcff.py"],
        ["stop", "-y", "\udcff"],
        ["memo", "kim/mnist/1", "\udcff"],
        ["model", "pull", "kim/mnist/1", "\udcff"],
        ["logs", "kim/mnist/1", "--grep", "\udcff"],
        ["dataset", "push", "\udcff", "."],
        ["forward", "kim/mnist/1", "\udcff"],
    ],
)
def test_what_is_not_utf8_is_refused(nsml, everything, state, project, words):
    (project / "\udcff.py").touch()
    result = nsml(*words, check=False)
    assert result.code == 2
    assert "is not UTF-8" in result.stderr
    assert len(state.sessions) == 1
