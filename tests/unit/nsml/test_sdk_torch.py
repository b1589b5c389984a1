"""The SDK with torch itself: tensors that are reported, drawn and saved, and learning rates that people change.

They stay changed, whichever schedule they follow. `test_sdk_with_torch.py` runs this file where torch is.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsml._frames import parse
from nsml._pictures import pictures_of
from nsml._session import Session
from tests.support.orders_agent import OrdersAgent, change

torch = pytest.importorskip("torch", reason="test_sdk_with_torch.py runs it where torch is")


def sequential(optimizer: Any) -> Any:
    schedulers = torch.optim.lr_scheduler
    parts = [
        schedulers.LinearLR(optimizer, start_factor=0.1, total_iters=4),
        schedulers.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
    ]
    return schedulers.SequentialLR(optimizer, parts, milestones=[12])


SCHEDULERS: dict[str, Callable[[Any, Any], Any]] = {
    "LambdaLR": lambda on, optimizer: on.LambdaLR(optimizer, lambda epoch: 0.95**epoch),
    "MultiplicativeLR": lambda on, optimizer: on.MultiplicativeLR(optimizer, lambda _: 0.95),
    "StepLR": lambda on, optimizer: on.StepLR(optimizer, 3, 0.5),
    "ExponentialLR": lambda on, optimizer: on.ExponentialLR(optimizer, 0.9),
    "LinearLR": lambda on, optimizer: on.LinearLR(optimizer, 0.1, total_iters=10),
    "PolynomialLR": lambda on, optimizer: on.PolynomialLR(optimizer, total_iters=40),
    "CosineAnnealingLR": lambda on, optimizer: on.CosineAnnealingLR(optimizer, 40),
    "CosineAnnealingWarmRestarts": lambda on, optimizer: on.CosineAnnealingWarmRestarts(
        optimizer, 9
    ),
    "OneCycleLR": lambda on, optimizer: on.OneCycleLR(optimizer, [1.0, 0.1], total_steps=60),
    "CyclicLR": lambda on, optimizer: on.CyclicLR(optimizer, [0.1, 0.01], [0.4, 0.04], 5),
    "ChainedScheduler": lambda on, optimizer: on.ChainedScheduler(
        [on.ConstantLR(optimizer, 0.5, 4), on.ExponentialLR(optimizer, 0.9)]
    ),
    "SequentialLR": lambda _, optimizer: sequential(optimizer),
}


class Run:
    def __init__(self, folder: Path) -> None:
        run = folder / "run"
        run.mkdir()
        self.agent = OrdersAgent(run)
        self.session = Session(str(run), "kim/mnist/3")
        self.weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
        self.step = 0

    def groups(self) -> list[dict[str, Any]]:
        return [{"params": [self.weights[0]], "lr": 0.1}, {"params": [self.weights[1]], "lr": 0.01}]

    def train(self, optimizer: Any, scheduler: Any, steps: int) -> list[list[float]]:
        """The rates with which each step was made."""
        found = []
        for _ in range(steps):
            self.step += 1
            self.session.points.step(self.step)
            found.append([float(group["lr"]) for group in optimizer.param_groups])
            optimizer.zero_grad()
            sum((weight**2).sum() for weight in self.weights).backward()
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
        return found


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.delenv("NSML_KNOBS", raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    one = Run(tmp_path)
    with one.agent, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield one


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_changed_rate_follows_its_schedule(run: Run, name: str) -> None:
    make = SCHEDULERS[name]
    on = torch.optim.lr_scheduler
    plain = torch.optim.SGD(run.groups(), lr=0.1, momentum=0.9)
    expected = Run.train(_unasked(run), plain, make(on, plain), 30)
    optimizer = torch.optim.SGD(run.groups(), lr=0.1, momentum=0.9)
    scheduler = make(on, optimizer)
    run.session.bind(
        save=lambda _: None, load=lambda _: None, optimizer=optimizer, scheduler=scheduler
    )
    found = run.train(optimizer, scheduler, 6)
    new = 3 * expected[6][0]
    run.agent.say(change(7, "commit", values={"lr": new}, at=7))
    found += run.train(optimizer, scheduler, 24)
    for place, (rates, unchanged) in enumerate(zip(found, expected, strict=True)):
        factor = 3 if place >= 6 else 1
        assert rates == pytest.approx([factor * rate for rate in unchanged], rel=1e-6), place
    known = run.agent.reports[-1]["known"]
    assert (known["is"], known["reason"]) == ("done", "")
    assert known["values"]["lr"] == [expected[6][0], new, found[7][0]]


def _unasked(run: Run) -> Run:
    """The same, of which nothing is asked."""
    other = object.__new__(Run)
    other.session, other.step, other.weights = Session("", ""), 0, run.weights
    return other


def test_a_rate_on_a_plateau(run: Run) -> None:
    optimizer = torch.optim.SGD(run.groups(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    run.session.bind(
        save=lambda _: None, load=lambda _: None, optimizer=optimizer, scheduler=scheduler
    )
    run.agent.say(change(7, "commit", values={"lr": 0.2}, at=2))
    run.train(optimizer, None, 2)
    assert [group["lr"] for group in optimizer.param_groups] == [0.2, 0.02]
    scheduler.step(1.0)
    scheduler.step(1.0)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.01]


def test_a_scheduler_that_is_not_bound_takes_the_change_back_and_that_is_said(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    optimizer = torch.optim.SGD(run.groups(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    run.session.bind(save=lambda _: None, load=lambda _: None, optimizer=optimizer)
    run.agent.say(change(7, "commit", values={"lr": 0.5}, at=2))
    run.train(optimizer, scheduler, 4)
    known = run.agent.reports[-1]["known"]
    assert known["values"] == {"lr": [0.1, 0.5, 0.1]}
    assert known["reason"].startswith(
        "lr is back at 0.1 one step later: something else in the program sets it; if that is a scheduler"
    )
    assert "lr is back at 0.1" in capsys.readouterr().err


@pytest.mark.parametrize("options", [{}, {"capturable": True}, {"fused": True}])
def test_a_rate_that_is_a_tensor(run: Run, options: dict[str, Any]) -> None:
    rate = torch.tensor(0.1, dtype=torch.float64)
    optimizer = torch.optim.Adam(run.weights, lr=rate, foreach=False, **options)
    run.session.bind(save=lambda _: None, load=lambda _: None, optimizer=optimizer)
    run.agent.say(change(7, "commit", values={"lr": 0.5}))
    run.session.points.look()
    run.session.points.look()
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == 0.5
    assert run.agent.reports[-1]["known"]["values"] == {"lr": [0.1, 0.5, 0.5]}


def test_steps_of_optimizers_are_counted_from_bind_on(run: Run) -> None:
    optimizer = torch.optim.SGD(run.groups(), lr=0.1)
    before = torch.optim.SGD(run.groups(), lr=0.1)
    run.train(before, None, 2)
    run.session.bind(save=lambda _: None, load=lambda _: None, optimizer=optimizer)
    found = []
    run.agent.say(change(7, "commit", values={"lr": 0.5}, counter="optimizer", at=3))
    for _ in range(5):
        found += [group["lr"] for group in optimizer.param_groups][:1]
        optimizer.step()
    assert found == [0.1, 0.1, 0.1, 0.5, 0.5]
    assert run.agent.reports[-1]["counters"]["optimizer"] >= 4


def recorded(folder: Path, kind: str) -> list[dict[str, Any]]:
    found = []
    for path in sorted(folder.glob("spool/*.records")):
        found += [json.loads(payload) for _, payload in parse(path.read_bytes())[0]]
    return [one for one in found if one["kind"] == kind]


def test_models_are_saved_and_filled_in_place(tmp_path: Path) -> None:
    session = Session(str(tmp_path), "kim/mnist/3")
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    session.bind(model=model, optimizer=optimizer)
    before = model.weight.detach().clone()
    session.save(1)
    with torch.no_grad():
        model.weight.zero_()
    session.load(1)
    assert torch.equal(model.weight, before)


def test_tensors_are_reported_as_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(str(tmp_path), "kim/mnist/3")
    weight = torch.nn.Parameter(torch.tensor([0.5, 1.5]))
    session.reporter.report(
        step=torch.tensor(3),
        loss=(weight**2).sum(),  # with a graph behind it
        weight=weight,
        half=torch.tensor(0.5, dtype=torch.bfloat16),
        right=torch.tensor(True),
        nowhere=torch.tensor(1.0, device="meta"),
    )
    (record,) = recorded(tmp_path, "metric")
    assert record["step"] == 3
    assert record["values"] == {"loss": 2.5, "weight": [0.5, 1.5], "half": 0.5, "right": 1}
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
def test_pictures_of_tensors_have_their_channels_in_front(kind: str) -> None:
    tensor = torch.zeros((2, 3, 4, 5), dtype=getattr(torch, kind), requires_grad=True)
    expected = torch.zeros((2, 3, 4, 5)).permute(0, 2, 3, 1).numpy()
    assert pictures_of(tensor) == pictures_of(expected)
