"""Several sessions of one command line."""

from __future__ import annotations

import click
import pytest

from cli.group import Typed
from cli.sessions.sweep import MOST, array_numbers, members, swept_values


def given(**more: object) -> dict[str, object]:
    return {"array": None, "sweep": (), "label": (), "env": (), **more}


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0", [0]),
        ("0-3", [0, 1, 2, 3]),
        ("0-9:4", [0, 4, 8]),
        ("5,1-2,2,5", [5, 1, 2]),
        (f"1-{MOST}", list(range(1, MOST + 1))),
    ],
)
def test_a_range_is_its_numbers_each_once(text: str, numbers: list[int]) -> None:
    assert array_numbers(text) == numbers


@pytest.mark.parametrize(
    "text", ["", "a", "3-1", "0-9:0", "-1", "0--1", "1,", "0-999999999", "1-2-3", "1e3", "٣"]
)
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError):
        array_numbers(text)


@pytest.mark.parametrize(
    "text", ["", "lr", "lr=", "=1", "lr=1,", "l r=1", "-lr=1", "lr=,", "lr=1,2,1"]
)
def test_what_names_no_values_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError, match="--sweep"):
        swept_values(text)


def test_values_come_in_all_combinations_and_as_if_each_had_been_typed_alone() -> None:
    typed = [Typed(click.Option(["--sweep"]), ["--sweep", "lr=1,2"]), Typed(None, ["main.py"])]
    several = members(given(sweep=("lr=0.1,-1", "bs=32,64"), array="7-8"), ["--x"], typed)
    assert len(several) == 8
    first, last = several[0], several[-1]
    assert first.words == ["--x", "--lr", "0.1", "--bs", "32"]
    assert last.words == ["--x", "--lr=-1", "--bs", "64"]
    assert dict(first.given["env"]) == {"ARRAY_INDEX": "7"}
    assert last.text == "ARRAY_INDEX=8 lr=-1 bs=64"
    words = [word for one in first.typed for word in one.words]
    label = dict(first.given["label"])["array"]
    assert words == ["main.py", "--label", f"array={label}", "--env", "ARRAY_INDEX=7"]
    assert {dict(one.given["label"])["array"] for one in several} == {label}
    assert (first.given["array"], first.given["sweep"]) == (None, ())


def test_a_label_of_ones_own_stays_and_one_session_is_none_of_several() -> None:
    mine = members(given(array="1", label=(("array", "mine"),)), None, [])
    assert [dict(one.given["label"]) for one in mine] == [{"array": "mine"}]
    assert mine[0].words is None
    assert members(given(), None, []) == []


def test_too_many_are_refused_before_any_is_made() -> None:
    with pytest.raises(click.UsageError, match="at most"):
        members(given(array="1-500", sweep=("a=1,2,3",)), None, [])
    with pytest.raises(click.UsageError, match="twice"):
        members(given(sweep=("a=1", "a=2")), None, [])
    for fixed in ({"args": "--a=3"}, {"args": "", "words": ["--a", "3"]}):
        words = fixed.pop("words", None)
        with pytest.raises(click.UsageError, match="--a is given twice, by --sweep and"):
            members(given(sweep=("a=1,2",), **fixed), words, [])


def test_sessions_of_one_sweep_come_from_its_first(nsml, state, project) -> None:  # type: ignore[no-untyped-def]
    nsml("run", "--sweep", "lr=1,2,3", "-o", "name")
    made = list(state.sessions.values())
    assert [one.origin.name for one in made] == ["", made[0].name, made[0].name]
    assert f"sweep of {made[0].name}" in nsml("status", "--explain", made[1].name).stdout
    assert "--lr 2" in nsml("command", made[1].name).stdout
    listed = nsml("ps", "-a", f"origin:{made[0].name}", "-o", "name").stdout.split()
    assert set(listed) == {one.name for one in made[1:]}
