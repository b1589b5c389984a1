"""secret and run --secret: values come in unseen and are told nowhere."""

import click
import pytest

MARK = "s3cret-7f1c"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (MARK, MARK),
        (f"{MARK}\n", MARK),
        (f"{MARK}\r\n", MARK),
        (f"{MARK}\n\n", f"{MARK}\n"),
        (f"two\nlines {MARK}", f"two\nlines {MARK}"),
        (f" {MARK} ", f" {MARK} "),
    ],
)
def test_from_stdin(nsml, state, given, kept):
    result = nsml("secret", "set", "TOKEN", stdin=given)
    assert state.secrets == {"TOKEN": kept.encode()}
    assert result.stdout == f"secret TOKEN set ({len(kept)} Bytes)\n"
    assert "nsml run --secret TOKEN" in result.stderr
    assert MARK not in result.stdout + result.stderr


def test_from_a_variable(nsml, state):
    result = nsml("secret", "set", "TOKEN", "--from-env", "MINE", MINE=MARK)
    assert state.secrets == {"TOKEN": MARK.encode()}
    assert MARK not in result.stdout + result.stderr
    missing = nsml("secret", "set", "TOKEN", "--from-env", "NOT_THERE", check=False)
    assert (missing.code, "NOT_THERE is not set here" in missing.stderr) == (2, True)


def test_typed_unseen(nsml, state, monkeypatch):
    asked = []

    def prompt(text, **how):
        asked.append((text, how["hide_input"]))
        return MARK

    monkeypatch.setattr(click, "prompt", prompt)
    nsml("secret", "set", "TOKEN", terminal=True)
    assert asked == [("Value of TOKEN", True)]
    assert state.secrets == {"TOKEN": MARK.encode()}


@pytest.mark.parametrize("words", [["TOKEN", MARK], ["TOKEN", "--", MARK]])
def test_never_in_the_command_line(nsml, state, words):
    result = nsml("secret", "set", *words, stdin="x", check=False)
    assert (result.code, state.secrets) == (2, {})
    assert "visible to all users of this machine" in result.stderr
    assert MARK not in result.stdout + result.stderr


def test_what_is_empty_is_not_set(nsml, state):
    for text in ("", "\n"):
        assert nsml("secret", "set", "TOKEN", stdin=text, check=False).code == 2
    assert nsml("--no-input", "secret", "set", "TOKEN", terminal=True, check=False).code == 2
    assert state.secrets == {}


def test_more_than_can_be_is_left_to_the_platform_and_not_read_for_ever(nsml, state):
    nsml("secret", "set", "TOKEN", stdin="x" * (1 << 20))
    assert len(state.secrets["TOKEN"]) == (32 << 10) + 3


def test_list_and_remove(nsml, state):
    assert nsml("secret", "ls").stderr == "no secrets: nsml secret set NAME\n"
    state.secrets |= {"B": MARK.encode(), "A": b"1"}
    assert nsml("secret", "ls").stdout.splitlines() == [
        "Name  Size      Set        Created",
        "----  --------  ---------  ---------",
        "A     1 Byte    a day ago  a day ago",
        "B     11 Bytes  a day ago  a day ago",
    ]
    for output in ("wide", "json", "jsonl", "yaml", "csv", "name"):
        assert MARK not in nsml("secret", "ls", "-o", output).stdout
    assert nsml("secret", "rm", "B", "-y").stderr == "secret B removed\n"
    assert list(state.secrets) == ["A"]
    assert nsml("secret", "rm", "B", check=False).code == 5


def test_a_session_with_secrets(nsml, state, project):
    nsml("run", "--secret", "TOKEN", "--secret", "KEY=AWS_KEY", "--secret", "TOKEN")
    [session] = state.sessions.values()
    uses = [(use.name, use.variable) for use in session.spec.secrets]
    assert uses == [("TOKEN", "TOKEN"), ("KEY", "AWS_KEY")]
    assert "--secret TOKEN --secret KEY=AWS_KEY" in nsml("command", "@last").stdout


@pytest.mark.parametrize(
    "word",
    [f"TOKEN={MARK}", f"{MARK}", "=X", "TOKEN=NSML_RANK", "HOME", "TOKEN=HOME", "", "TOKEN="],
)
def test_uses_that_cannot_be(nsml, state, project, word):
    result = nsml("run", "--secret", word, check=False)
    assert (result.code, state.sessions) == (2, {})
    assert MARK not in result.stderr
