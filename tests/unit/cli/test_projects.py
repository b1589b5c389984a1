"""project: what is asked for, and what is shown."""

import json

import pytest

from nsml.v1 import projects_pb2
from nsml.v1 import sessions_pb2 as pb


def test_ls(nsml, everything):
    assert nsml("project", "ls").stdout == (
        "Name    Owner  Members  GPUs     Sessions  GPU-hours    Until\n"
        "------  -----  -------  -------  --------  -----------  ----------\n"
        "vision  kim    2        8 of 16  3 of 4    12.5 of 500  2023-12-14\n"
    )


def test_none(nsml, state):
    assert nsml("project", "ls").stderr == "no projects but your own, which has no bounds\n"


def test_show(nsml, everything):
    assert nsml("project", "show", "vision").stdout == (
        "vision\n"
        "  owner     kim\n"
        "  members   kim, lee\n"
        "  holds     8 of 16 GPUs, 12 cores, 40.0 GiB of memory, 3 of 4 sessions\n"
        "  each      at most 8 GPUs, 64.0 GiB of memory\n"
        "  budget    12.5 of 500 GPU-hours used in 30 days, 2023-11-14 to 2023-12-14\n"
        "  priority  normal at most\n"
        "  weight    2\n"
        "  share     5.5 (8 GPUs now, 3 recent; half-life 7d; weight 2)\n"
        "  held by   kim 8 GPUs\n"
        "  sessions  kim/mnist/1, 2 of others\n"
    )


def test_what_is_not_known_is_not_zero(nsml, everything, state):
    for field in ("gpu_seconds", "since", "until"):
        state.projects["vision"].usage.ClearField(field)
    assert "? of 500 GPU-hours used in 30 days: it is being counted" in (
        nsml("project", "show", "vision").stdout
    )
    shown = json.loads(nsml("project", "ls", "-j").stdout)["items"][0]
    assert (shown["usage"]["gpu_seconds"], shown["usage"]["until"]) == (None, None)


def test_create(nsml, state):
    words = "--owner kim --member lee --member eve --gpus 16 --member-gpus 0.5 --memory 64G"
    more = "--gpu-hours 500 --period 30d --from 2026-12-01 --weight 2 --max-priority NORMAL"
    shown = nsml("project", "create", "speech", *words.split(), *more.split())
    assert shown.stdout.startswith("speech\n  owner     kim\n  members   eve, kim, lee\n")
    settings = state.projects["speech"].settings
    assert settings.quota == projects_pb2.Quota(gpu_thousandths=16_000, memory_bytes=64 * 10**9)
    assert settings.member_quota == projects_pb2.Quota(gpu_thousandths=500)
    assert (settings.budget.gpu_seconds, settings.budget.period_days) == (1_800_000, 30)
    assert settings.budget.anchor.ToJsonString() == "2026-12-01T00:00:00Z"
    assert (settings.weight, settings.most_priority) == (2.0, pb.PRIORITY_NORMAL)


def test_set_names_only_what_is_to_change(nsml, everything, state):
    nsml("project", "set", "vision", "--gpus", "none", "--cpus", "2.5")
    settings = state.projects["vision"].settings
    assert (settings.quota.gpu_thousandths, settings.quota.cpu_thousandths) == (0, 2500)
    assert (settings.quota.sessions, settings.weight, settings.owner) == (4, 2.0, "kim")
    nsml("project", "set", "vision", "--gpu-hours", "none")
    assert not settings.HasField("budget")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpus", "0"], "for no limit: none"),
        (["--gpus", "0.0"], "for no limit: none"),
        (["--gpus", "-1"], "is less than none"),
        (["--gpus", "0.0001"], "finer than a thousandth"),
        (["--memory", "0"], "for no limit: none"),
        (["--sessions", "0"], "for no limit: none"),
        (["--gpu-hours", "0"], "a budget of zero"),
        (["--gpu-hours", "-1"], "is not a number of hours"),
        (["--gpu-hours", "nan"], "is not a number of hours"),
        (["--gpu-hours", "1e9"], "is not a number of hours"),
        (["--gpu-hours", "9" * 400], "is more hours than there can be"),
        (["--gpu-hours", "none", "--period", "3d"], "goes without --period"),
        (["--period", "36h"], "whole days"),
        (["--period", "0"], "whole days"),
        (["--period", "soon"], "is not a duration"),
        (["--from", "tomorrow"], "is not a day"),
        (["--weight", "much"], "'much' is not a valid number"),
        (
            ["--max-priority", "urgent"],
            "--max-priority: 'urgent' is not one of idle, low, normal, high",
        ),
        (["--max-priority", "hihg"], "try: nsml project set --max-priority high ..."),
        ([], "nothing to set"),
    ],
)
def test_what_cannot_be_is_refused_in_words(nsml, everything, state, words, said):
    before = state.projects["vision"].SerializeToString()
    result = nsml("project", "set", "vision", *words, check=False)
    assert (result.code, result.stdout) == (2, "")
    assert said in result.stderr
    assert state.projects["vision"].SerializeToString() == before


def test_a_member_bound_above_that_of_all_is_told(nsml, state):
    made = nsml("project", "create", "x", "--member-gpus", "8", "--gpus", "4", "--memory", "64G")
    assert made.stderr == "a member may hold 8 GPUs, and all together 4 GPUs: that bounds each\n"
    assert made.stdout.startswith("x\n")
    assert nsml("project", "set", "x", "--gpus", "8", "--member-memory", "64G").stderr == ""


def test_how_many_hours_are_too_many_is_for_the_platform_to_say(nsml, everything, state):
    nsml("project", "set", "vision", "--gpu-hours", "999999999999999")
    assert state.projects["vision"].settings.budget.gpu_seconds == 999999999999999 * 3600.0


def test_members(nsml, everything, state):
    nsml("project", "add", "vision", "eve", "ann")
    assert list(state.projects["vision"].members) == ["ann", "eve", "kim", "lee"]
    nsml("project", "remove", "vision", "eve", "lee", "-y")
    assert list(state.projects["vision"].members) == ["ann", "kim"]
    again = nsml("project", "remove", "vision", "ann", "lee", "-y")
    assert again.stderr == "lee is no member of project vision\n"
    nsml("project", "remove", "vision", "lee")  # there is nothing to confirm
    again = nsml("project", "add", "vision", "kim", "lee")
    assert again.stderr == "kim is a member of project vision already\n"
    assert nsml("project", "add", "vision", check=False).code == 2


def test_rm_asks(nsml, everything, state):
    assert nsml("project", "rm", "vision", check=False).code == 2
    assert "vision" in state.projects
    nsml("project", "rm", "vision", "-y")
    assert nsml("project", "rm", "vision", "-y", check=False).code == 5
    assert not state.projects


def test_the_record_says_everything(nsml, everything):
    shown = json.loads(nsml("project", "show", "vision", "-j").stdout)
    assert shown["quota"] == {
        "gpu_thousandths": 16000,
        "cpu_thousandths": None,
        "memory_bytes": None,
        "sessions": 4,
    }
    assert shown["budget"]["gpu_seconds"] == 1_800_000.0
    assert (shown["most_priority"], shown["hidden_sessions"]) == ("normal", 2)
    share = shown["usage"]["share"]
    assert (share["value"], share["lately_gpus"], share["half_life_s"]) == (5.5, 3.0, 604_800.0)
    header, _, row = nsml("project", "ls", "-o", "wide").stdout.splitlines()
    assert row[header.index("Share") :].split()[0] == "5.5"


@pytest.mark.parametrize(("text", "kept_bytes"), [("2T", 2 * 10**12), ("none", 0)])
def test_administrators_set_a_quota_of_stored_data(nsml, everything, state, text, kept_bytes):
    shown = nsml("project", "set", "vision", "--kept", text).stdout
    assert state.projects["vision"].settings.kept_bytes == kept_bytes
    assert ("  stores    2.0 TB at most" in shown) == bool(kept_bytes)
