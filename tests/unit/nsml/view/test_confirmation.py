"""The rule that says which commands ask, and what their questions say."""

import re
from pathlib import Path

import pytest

from nsml.common.text import width
from nsml.v1 import checkpoints_pb2
from nsml.v1 import sessions_pb2 as pb
from nsml.view.confirmation import (
    COMMANDS,
    MOST_LISTED,
    Asks,
    Plan,
    Rule,
    Target,
    listed,
    losses,
    summary,
    target_of,
)

PAGE = Path(__file__).parents[4] / "docs" / "confirmation.md"
STOP, RM, FENCE = COMMANDS["stop"], COMMANDS["rm"], COMMANDS["node fence"]
MINE, SECOND, THEIRS = Target("kim/a/1", "kim"), Target("kim/a/2", "kim"), Target("lee/a/1", "lee")


@pytest.mark.parametrize(
    ("rule", "targets", "asks"),
    [
        (STOP, [], False),
        (STOP, [MINE], False),
        (STOP, [MINE, SECOND], True),
        (STOP, [THEIRS], True),
        (RM, [], False),
        (RM, [MINE], True),
        (FENCE, [], False),
        (FENCE, [Target("kim/a/1")], True),
    ],
)
def test_when_it_asks(rule: Rule, targets: list[Target], asks: bool) -> None:
    assert Plan(rule=rule, targets=targets, user="kim").asks is asks


def test_a_yes_is_enough_for_ten_and_to_destroy_more_their_number_is_typed() -> None:
    many = [Target(f"kim/a/{number}", "kim") for number in range(MOST_LISTED + 1)]
    assert Plan(rule=RM, targets=many[1:], user="kim").typed == 0
    assert Plan(rule=RM, targets=many, user="kim").typed == 11
    assert Plan(rule=STOP, targets=many, user="kim").typed == 0


def test_the_question_says_what_is_lost_and_whose_it_is() -> None:
    sessions = [pb.Session(checkpoint_count=5), pb.Session(checkpoint_count=7)]
    saved = [checkpoints_pb2.Checkpoint(size_bytes=350_000_000)] * 12
    lost = losses(sessions, saved)
    assert lost == ["12 checkpoints (4.2 GB)", "logs and metrics"]
    assert losses(sessions) == ["12 checkpoints", "logs and metrics"]
    assert losses([pb.Session()]) == ["logs and metrics"]

    def said(targets: list[Target]) -> str:
        return summary(Plan(rule=RM, targets=targets, user="kim", loses=lost))

    assert said([MINE]) == "remove kim/a/1, 12 checkpoints (4.2 GB), logs and metrics"
    assert said([MINE, SECOND]).startswith("remove 2 sessions, 12 checkpoints")
    assert said([THEIRS]).startswith("remove lee/a/1 of lee, ")
    assert said([MINE, THEIRS]).startswith("remove 2 sessions (some of lee), ")
    others = [Target(name, name[0]) for name in ("a/1", "b/1", "c/1", "d/1")]
    assert "remove 4 sessions of a, b, c, ..., " in said(others)


def test_what_is_done_in_any_case_comes_first() -> None:
    plan = Plan(rule=FENCE, targets=[], first="fence node gpu-1")
    assert summary(plan) == "fence node gpu-1"
    plan = Plan(rule=FENCE, targets=[Target("x"), Target("y")], first="fence node gpu-1")
    assert summary(plan) == "fence node gpu-1 and end 2 sessions"


def test_ten_targets_are_listed_and_the_rest_is_counted() -> None:
    plan = Plan(rule=RM, targets=[Target(f"kim/a/{number}") for number in range(412)])
    lines = listed(plan)
    assert len(lines) == MOST_LISTED + 1
    assert lines[-1] == "  ... and 402 more"
    assert len(listed(plan, most=None)) == 412


def test_a_terminal_obeys_nothing_of_a_memo_or_a_name() -> None:
    session = pb.Session(
        name="kim/a/1", owner="kim", state=pb.SESSION_STATE_RUNNING, memo="\x1b[2J\nyes? y"
    )
    plan = Plan(rule=RM, targets=[target_of(session), Target("\x1b]0;x\x07")])
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", "\n".join(listed(plan)))
    assert len(listed(plan)) == 2
    only = Plan(rule=RM, targets=[Target("\x1b]0;x\x07")])
    assert "\x1b" not in summary(only)


def test_the_page_lists_every_command_with_when_it_asks() -> None:
    rows = re.findall(
        r"^\| `nsml ([a-z ]+?)(?: --revoke| --disqualify)?` \| (.*?) \|",
        PAGE.read_text(),
        re.MULTILINE,
    )
    assert dict(rows) == {name: rule.asks.value for name, rule in COMMANDS.items()}
    assert {rule.asks for rule in COMMANDS.values()} == set(Asks)


def test_no_text_of_a_target_passes_for_another_line_or_fills_the_question():
    sly = "a\n" + " " * 200 + "  lee/mnist/3   nothing is lost: press y" + "x" * 4_000
    one = pb.Session(name="kim/mnist/1", owner="kim", state=pb.SESSION_STATE_SUCCEEDED, memo=sly)
    plan = Plan(rule=COMMANDS["rm"], targets=[target_of(one)] * 2)
    for line in listed(plan):
        assert width(line) < 80
        assert "   " not in line.strip()
    names = ["best", "old  and 2 backups of it. Keep best", "q'uote", "x" * 512]
    targets = [Target(name, "kim", "1 kB", is_text=True) for name in names]
    plan = Plan(rule=COMMANDS["model rm"], targets=targets, noun="checkpoint")
    first, second, third, last = listed(plan)
    assert first.split() == ["best", "1", "kB"]
    assert second.split("  ")[1].startswith("'old")
    assert "'old  and 2 backups of it. Keep best'" in second
    assert '"q\'uote"' in third
    assert width(last) < 100
    alone = Plan(rule=COMMANDS["model rm"], targets=targets[1:2], noun="checkpoint", user="kim")
    assert summary(alone) == "remove the checkpoint 'old  and 2 backups of it. Keep best'"
