"""Arguments at the places of others are told with the line that was meant."""

import json

import pytest


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("forward 8888 @last", "forward @last 8888"),
        ("forward web mnist/1 --port 80", "forward mnist/1 web --port 80"),
        ("exec 1+1 @last", "exec @last 1+1"),
        ("load 400 @last", "load @last 400"),
        ("model pull best kim/mnist/1", "model pull kim/mnist/1 best"),
        ("model pull best @last --earlier", "model pull @last best --earlier"),
        ("model rm best mnist/1 -y", "model rm mnist/1 best -y"),
        ("memo baseline @last", "memo @last baseline"),
        ("media samples @2", "media @2 samples"),
        ("events val/loss @last", "events @last val/loss"),
        ("plot @last val/loss", "plot @last -m val/loss"),
        ("export @last out.csv", "export @last -o out.csv"),
        ("export out.jsonl @last", "export @last -o out.jsonl"),
        ("dataset push . digits", "dataset push digits ."),
        ("dataset pull ./data nonono", "dataset pull nonono ./data"),
    ],
)
def test_the_line_that_was_meant(nsml, everything, project, typed, meant):
    result = nsml(*typed.split(), check=False)
    assert result.code != 0
    assert result.stdout == ""
    assert f"\n  try: nsml {meant}\n" in result.stderr


@pytest.mark.parametrize(
    "typed",
    [
        "forward nonono web",
        "forward 99 80",
        "forward 99 3",
        "forward web 80",
        "forward 70000 @last",
        "forward kim/mnist/99 @last",
        "load 99 400",
        "load kim/mnist/99 @last",
        "memo 99 text",
        "plot val/loss",
        "diff kim/mnist/1 kim/mnist/99",
        "model pull @last nonono",
        "dataset push digits missing",
        "dataset pull nonono target",
        f"dataset push {'x' * 300} missing",
        "dataset pull kim/nonono target",
        "logs nonono",
        "exec 99 1",
        "exec --limit 3s 99 1",
    ],
)
def test_nothing_is_made_up(nsml, everything, project, typed):
    (project / "nonono").mkdir()  # a folder of the name is no sign of what was meant
    result = nsml(*typed.split(), check=False)
    assert result.code != 0
    swapped = [*typed.split()[:-2], *reversed(typed.split()[-2:])]
    assert " ".join(swapped) not in result.stderr
    assert " -m " not in result.stderr


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("diff memo:sweep --metrics", "ps -a memo:sweep -o name | nsml diff - --metrics"),
        ("plot lr>=0.1 -m val/*", "ps -a 'lr>=0.1' -o name | nsml plot - -m 'val/*'"),
    ],
)
def test_a_filter_in_place_of_a_session_is_one_of_ps(nsml, everything, typed, meant):
    result = nsml(*typed.split(), check=False)
    assert f"\n  try: nsml {meant}\n" in result.stderr


def test_programs_read_it_as_well(nsml, everything):
    result = nsml("events", "val/loss", "@last", "-j", check=False)
    assert json.loads(result.stderr)["error"]["try"] == ["nsml events @last val/loss -j"]
