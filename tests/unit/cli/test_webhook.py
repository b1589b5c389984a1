"""webhook: its URL comes in unseen, and is shown nowhere."""

import json

import click
import pytest

MARK = "s3cret-51aa"
URL = f"https://hooks.example.org/services/{MARK}"


def test_set_from_stdin_shown_tried_and_removed(nsml, state):
    made = nsml("webhook", "set", stdin=f"{URL}\n")
    assert state.webhook == URL
    assert made.stdout == "webhook set: https://hooks.example.org  (on ended, idle)\n"
    assert "nsml webhook test" in made.stderr
    assert MARK not in made.stdout + made.stderr
    assert nsml("webhook", "show").stdout == "https://hooks.example.org  (on ended, idle)\n"
    shown = json.loads(nsml("webhook", "show", "-j").stdout)
    assert (shown["origin"], shown["on"]) == ("https://hooks.example.org", ["ended", "idle"])
    assert nsml("webhook", "test").stdout == "it answered 204\n"
    assert nsml("webhook", "rm", "-y").stderr == "webhook removed\n"
    assert state.webhook == ""
    assert nsml("webhook", "rm").stderr == "no webhook was set\n"
    assert nsml("webhook", "show").stdout == "no webhook: nsml webhook set\n"
    assert json.loads(nsml("webhook", "show", "-j").stdout)["origin"] == ""
    assert nsml("webhook", "test", check=False).code != 0


def test_from_a_variable(nsml, state):
    nsml("webhook", "set", "--from-env", "MINE", MINE=URL)
    assert state.webhook == URL
    missing = nsml("webhook", "set", "--from-env", "NOT_THERE", check=False)
    assert (missing.code, "NOT_THERE is not set here" in missing.stderr) == (2, True)


def test_typed_unseen(nsml, state, monkeypatch):
    asked = []

    def prompt(text, **how):
        asked.append((text, how["hide_input"]))
        return URL

    monkeypatch.setattr(click, "prompt", prompt)
    nsml("webhook", "set", terminal=True)
    assert asked == [("URL", True)]
    assert state.webhook == URL


@pytest.mark.parametrize("words", [[URL], ["--", URL]])
def test_never_in_the_command_line(nsml, state, words):
    result = nsml("webhook", "set", *words, stdin="x", check=False)
    assert (result.code, state.webhook) == (2, "")
    assert "seen by all on this machine" in result.stderr
    assert MARK not in result.stdout + result.stderr


def test_what_is_empty_is_not_set(nsml, state):
    for text in ("", "\n"):
        assert nsml("webhook", "set", stdin=text, check=False).code == 2
    assert nsml("--no-input", "webhook", "set", terminal=True, check=False).code == 2
    assert state.webhook == ""


def test_called_for_what_is_chosen(nsml, state):
    nsml("webhook", "set", "--on", "failed", "--on", "idle", stdin=URL)
    assert json.loads(nsml("webhook", "show", "-j").stdout)["on"] == ["failed", "idle"]
    wrong = nsml("webhook", "set", "--on", "faild", stdin=URL, check=False)
    assert (wrong.code, "failed" in wrong.stderr) == (2, True)
