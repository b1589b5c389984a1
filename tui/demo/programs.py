"""Programs of the demo's sessions, and their reports."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program of a session, as far as it shows.

    Attributes:
        args: of its command.
        every_s: between two reports.
        steps: from one report to the next.
        log: format of the line printed at a report, from its values.
        metrics: by name a function of the progress, from 0 to 1, and its scatter.
    """

    dataset: str
    entry: str
    args: str
    every_s: float
    steps: int
    log: str
    metrics: dict[str, tuple[Callable[[float], float], float]]


def _falls(start: float, end: float, speed: float = 6.0) -> Callable[[float], float]:
    return lambda done: end + (start - end) * math.exp(-speed * done)


def _warms_up(peak: float) -> Callable[[float], float]:
    return lambda done: (
        peak * done / 0.05 if done < 0.05 else peak * (1 + math.cos(math.pi * done)) / 2
    )


PROGRAMS: Final = (
    Program(
        dataset="leaves",
        entry="train.py",
        args="--lr 0.1 --batch 512",
        every_s=4.0,
        steps=50,
        log="step {step:>6}  loss {loss:.4f}  acc {val/acc:.4f}",
        metrics={
            "loss": (_falls(4.6, 0.42), 0.09),
            "val/acc": (_falls(0.02, 0.87, 5.0), 0.012),
            "lr": (_warms_up(0.1), 0.0),
        },
    ),
    Program(
        dataset="tales",
        entry="pretrain.py",
        args="--layers 24 --lr 3e-4",
        every_s=6.0,
        steps=10,
        log="step {step:>6} | loss {loss:.4f} | {tokens/s:,.0f} tokens/s | grad {norm:.3f}",
        metrics={
            "loss": (_falls(9.8, 2.9, 9.0), 0.05),
            "norm": (_falls(2.4, 0.31, 12.0), 0.06),
            "tokens/s": (lambda done: 41_000 + 700 * math.sin(40 * done), 400.0),
        },
    ),
    Program(
        dataset="waves",
        entry="denoise.py",
        args="--depth 6 --lr 2e-3",
        every_s=3.0,
        steps=20,
        log="[{step:>6}] loss={loss:.5f} val={val/loss:.5f} snr={snr:.2f}dB",
        metrics={
            "loss": (_falls(0.9, 0.031, 7.0), 0.008),
            "val/loss": (lambda done: 0.045 + 0.9 * math.exp(-7 * done) + 0.06 * done**3, 0.004),
            "snr": (_falls(3.0, 19.5, 4.0), 0.25),
        },
    ),
    Program(
        dataset="maze",
        entry="play.py",
        args="--agents 64",
        every_s=5.0,
        steps=1_000,
        log="{step:>8} steps  return {return:.1f}  entropy {policy/entropy:.3f}",
        metrics={
            "return": (lambda done: 480 / (1 + math.exp(-14 * (done - 0.35))) - 20, 18.0),
            "policy/entropy": (_falls(2.2, 0.35, 3.0), 0.04),
        },
    ),
)
