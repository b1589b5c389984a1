"""Knobs: what a program declares, the numbers of its optimizers, and values that are known from the start."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from nsml._knobs import Knob, Knobs
from nsml._presets import parse_presets
from nsml._session import Session


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def knobs(said: list[str]) -> Knobs:
    return Knobs([], said.append)


@pytest.mark.parametrize(
    ("name", "given", "error"),
    [
        (7, (0.1, None, None, None), TypeError),
        ("", (0.1, None, None, None), ValueError),
        ("a b", (0.1, None, None, None), ValueError),
        ("x" * 65, (0.1, None, None, None), ValueError),
        ("lr\n", (0.1, None, None, None), ValueError),
        ("lr", (None, None, None, None), TypeError),
        ("lr", ([0.1], None, None, None), TypeError),
        ("lr", (1j, None, None, None), TypeError),
        ("lr", (math.nan, None, None, None), ValueError),
        ("lr", (math.inf, None, None, None), ValueError),
        ("lr", (2.0, None, 1.0, None), ValueError),
        ("lr", (0.1, 1.0, None, None), ValueError),
        ("lr", (0.1, "0", None, None), TypeError),
        ("lr", (0.1, math.nan, None, None), TypeError),
        ("lr", (0.1, True, None, None), TypeError),
        ("seed", (2**63, None, None, None), ValueError),
        ("mode", ("fast", "a", None, None), TypeError),
        ("mode", ("fast", None, None, ["slow"]), ValueError),
        ("mode", ("fast", None, None, ["fast", 1]), TypeError),
        ("mode", ("fast", None, None, []), ValueError),
        ("mode", ("fast", None, None, 7), TypeError),
        ("mode", ("x" * 257, None, None, None), ValueError),
        ("on", (True, 0, None, None), TypeError),
    ],
)
def test_declarations_that_make_no_sense(
    knobs: Knobs, name: Any, given: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"nsml\.knob"):
        knobs.declare(name, given)
    assert knobs.declared == {}


def test_values_are_plain_whatever_the_default_is(knobs: Knobs) -> None:
    numpy = pytest.importorskip("numpy")
    knob = knobs.declare("lr", (numpy.float64(0.5), numpy.float64(0.0), None, None))
    assert type(knob.value) is float
    assert json.dumps(knobs.table())


class HostileError(Exception):
    pass


class Hostile:
    """An object whose every method raises."""

    def __repr__(self) -> str:
        raise HostileError

    __eq__ = __hash__ = __bool__ = __repr__  # type: ignore[assignment]


def test_objects_that_raise_are_refused(knobs: Knobs) -> None:
    knobs.declare("lr", (0.1, None, None, None))
    assert knobs.refusal({"lr": Hostile()}) == "lr: an object of type Hostile is not a number"


def test_of_two_declarations_the_first_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(str(tmp_path), "kim/mnist/3")
    assert session.knob("lr", 0.1, max=1.0) == 0.1
    for _ in range(3):
        assert session.knob("lr", 0.1, max=1.0) == 0.1
    assert capsys.readouterr().err == ""
    for choices in (None, Hostile()):
        assert session.knob("lr", 0.2, max=5.0, choices=choices) == 0.1
    assert capsys.readouterr().err.count("lr is declared again in another way") == 1


def test_outside_of_a_session_it_is_the_default(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("NSML_KNOBS", json.dumps([{"name": "lr", "value": 9, "at": None}]))
    monkeypatch.chdir(tmp_path)
    session = Session("", "")
    assert session.knob("lr", 0.1, min=0.0, max=1.0) == 0.1
    with pytest.raises(ValueError, match="more than its max"):
        session.knob("other", 2.0, max=1.0)
    assert session.knob_table() == {
        "lr": {"value": 0.1, "default": 0.1, "min": 0.0, "max": 1.0, "choices": None, "step": None}
    }


class Tensor:
    """A number as torch has it, where a graph has taken it."""

    def __init__(self, number: float) -> None:
        self.number = number

    def item(self) -> float:
        return self.number

    def numel(self) -> int:
        return 1

    def fill_(self, number: float) -> None:
        self.number = number


class Optimizer:
    def __init__(self, *groups: dict[str, Any]) -> None:
        self.param_groups = list(groups)


class Scheduler:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def test_a_learning_rate_keeps_the_proportions_of_groups_and_schedulers(knobs: Knobs) -> None:
    first = Optimizer(
        {"lr": 0.01, "initial_lr": 0.1, "max_lr": 1.0, "min_lr": 0.001, "weight_decay": 0.5},
        {"lr": 0.001, "initial_lr": 0.01, "betas": (0.9, 0.99), "foreach": None},
    )
    second = Optimizer({"lr": 0.02, "params": []})
    inner = Scheduler(base_lrs=[0.1, 0.01], _last_lr=[0.01, 0.001])
    outer = Scheduler(_schedulers=[inner], _last_lr=[0.01, 0.001])
    knobs.bind(
        {"model": object(), "optimizers": [first, second], "scheduler": outer, "again": inner}
    )
    assert knobs.set({"lr": 0.02}, 5) == {"lr": [0.01, 0.02]}
    assert first.param_groups[0] == {
        "lr": 0.02, "initial_lr": 0.2, "max_lr": 2.0, "min_lr": 0.002, "weight_decay": 0.5,
    }  # fmt: skip
    assert first.param_groups[1]["lr"] == 0.002
    assert second.param_groups[0]["lr"] == 0.04
    assert inner.base_lrs == [0.2, 0.02]
    assert inner._last_lr == outer._last_lr == [0.02, 0.002]
    table = knobs.table()
    assert sorted(table) == ["lr", "weight_decay"]
    assert table["lr"]["value"] == 0.02
    assert table["lr"]["step"] == 5


def test_groups_without_decay_stay_without(knobs: Knobs) -> None:
    optimizer = Optimizer({"weight_decay": 0.0}, {"weight_decay": 0.1}, {"weight_decay": 0.2})
    knobs.bind({"optimizer": optimizer})
    assert knobs.set({"weight_decay": 0.05}, None) == {"weight_decay": [0.1, 0.05]}
    assert [one["weight_decay"] for one in optimizer.param_groups] == [0.0, 0.05, 0.1]
    knobs.set({"weight_decay": 0}, None)
    assert knobs.set({"weight_decay": 0.4}, None) == {"weight_decay": [0.0, 0.4]}
    assert [one["weight_decay"] for one in optimizer.param_groups] == [0.0, 0.4, 0.8]
    none = Optimizer({"weight_decay": 0.0}, {"weight_decay": 0}, {})
    knobs.bind({"optimizer": none})
    assert knobs.set({"weight_decay": 0.05}, None) == {"weight_decay": [0.0, 0.05]}
    assert none.param_groups == [{"weight_decay": 0.05}, {"weight_decay": 0.05}, {}]


def test_a_rate_in_a_tensor_stays_the_same_tensor(knobs: Knobs) -> None:
    shared = Tensor(0.01)
    optimizer = Optimizer({"lr": shared, "initial_lr": shared}, {"lr": shared})
    knobs.bind({"optimizer": optimizer})
    knobs.set({"lr": 0.02}, None)
    assert optimizer.param_groups[1]["lr"] is shared
    assert shared.number == 0.02, "once, though three places have it"


@pytest.mark.parametrize(
    ("groups", "values", "why"),
    [
        ([{"lr": 0.1}], {"lr": 0}, "lr: with 0"),
        ([{"lr": 0.0}], {"lr": 0.1}, "lr: it is 0 now"),
        ([{"lr": math.nan}], {"lr": 0.1}, "lr: it is nan now"),
        ([{"lr": 0.1}], {"lr": -0.1}, "lr: -0.1 is less than 0"),
        ([{"lr": 0.1}], {"lr": "0.1"}, "lr: '0.1' is not a number"),
        ([{"lr": 0.1}], {"initial_lr": 0.1}, "no knob initial_lr: the program has declared lr"),
        ([{"lr": 0.1, "nesterov": True}], {"nesterov": 1}, "there is no knob nesterov"),
        ([{"lr": 1e-300}, {"lr": 1e300}], {"lr": 1e-10}, "would be too large"),
        ([7, {"lr": None}], {"lr": 0.1}, "there is no knob lr: the program has declared none"),
    ],
)
def test_numbers_of_optimizers_that_cannot_be_set(
    knobs: Knobs, groups: list[Any], values: dict[str, Any], why: str
) -> None:
    knobs.bind({"optimizer": Optimizer(*groups)})
    before = [dict(one) for one in groups if isinstance(one, dict)]
    with pytest.raises(ValueError, match=why):
        knobs.set(values, None)
    assert [one for one in groups if isinstance(one, dict)] == before or "nan" in why


class Broken(Tensor):
    def fill_(self, number: float) -> None:
        raise HostileError


def test_all_are_set_or_none(knobs: Knobs) -> None:
    knobs.declare("batch", (32, None, None, None))
    tensor = Tensor(0.1)
    optimizer = Optimizer({"lr": 0.1}, {"lr": tensor}, {"lr": Broken(0.1)})
    knobs.bind({"optimizer": optimizer})
    with pytest.raises(HostileError):
        knobs.set({"batch": 64, "lr": 0.2}, None)
    assert (optimizer.param_groups[0]["lr"], tensor.number) == (0.1, 0.1)
    assert knobs.declared["batch"].value == 32


def test_a_declared_knob_hides_the_number_of_an_optimizer(knobs: Knobs) -> None:
    optimizer = Optimizer({"lr": 0.1})
    knobs.bind({"optimizer": optimizer})
    knob = knobs.declare("lr", (0.5, None, None, None))
    knobs.set({"lr": 0.25}, None)
    assert (knob.value, optimizer.param_groups[0]["lr"]) == (0.25, 0.1)


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (0.2, ""),
        (0.19, ""),
        (
            0.1,
            "lr is back at 0.1 one step later: something else in the program sets it; if that is",
        ),
        (0.11, "lr is back at 0.11 one step later"),
        (math.nan, "lr is no number any more"),
    ],
)
def test_what_is_in_force_is_read_back(knobs: Knobs, now: float, why: str) -> None:
    optimizer = Optimizer({"lr": 0.1})
    knobs.bind({"optimizer": optimizer})
    values = knobs.set({"lr": 0.2}, None)
    optimizer.param_groups = [{"lr": now}]  # as a checkpoint that is loaded
    found, told = knobs.read_back(values)
    assert found == {"lr": [0.1, 0.2, now if math.isfinite(now) else None]}
    assert told.startswith(why)
    assert bool(told) == bool(why)


def test_presets_wait_for_their_knob_and_their_step(said: list[str]) -> None:
    presets = parse_presets(
        json.dumps(
            [
                {"name": "lr", "value": 0.5, "counter": "", "at": None},
                {"name": "lr", "value": 0.25, "counter": "step", "at": 5},
                {"name": "wd", "value": 0.5, "counter": "", "at": None},
            ]
        )
    )
    knobs = Knobs(presets, said.append)
    knobs.advance("report", 7)
    assert knobs.has_presets_ahead
    knobs.advance("step", 7)
    assert not knobs.has_presets_ahead
    assert knobs.declare("lr", (1.0, None, None, None)).value == 0.25
    assert knobs.unused_presets() == ["wd"]
    assert said == []


def test_a_knob_takes_no_room_of_its_own_for_each_read(knobs: Knobs) -> None:
    knob = knobs.declare("lr", (0.1, None, None, None))
    assert isinstance(knob, Knob)
    assert not hasattr(knob, "__dict__")
