"""Many seeds over several processes, and what came of them."""

from __future__ import annotations

import gc
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

from tests.simulation.faults import FAULTS
from tests.simulation.invariants import Invariant
from tests.simulation.scenario import Outcome, simulate_situation
from tests.simulation.virtual_time import LONGEST_REAL_S

LONGEST_SEED_S = 2 * LONGEST_REAL_S
"""Real seconds after which a seed is taken for one that never ends, within one step of it."""

_AT_ONCE = 20
_TOLD_LINES = 60


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A seed that broke something."""

    seed: int
    profile: str
    reason: str
    trace: str

    @property
    def replay(self) -> str:
        """The command that runs exactly this again."""
        return f"python -m tests.simulation --seed {self.seed} --profile {self.profile}"


@dataclass
class Tally:
    """What many seeds came to together."""

    seeds: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    virtual_s: float = 0.0
    without_faults: int = 0
    failures: list[Failure] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Count a seed that held."""
        self.seeds += 1
        self.faults.update(outcome.faults)
        self.operations.update(outcome.operations)
        self.checks.update(outcome.checks)
        self.virtual_s += outcome.lasted_s
        self.without_faults += not outcome.faults

    def merge(self, other: Tally) -> None:
        """Count what another tally has."""
        self.seeds += other.seeds
        self.faults.update(other.faults)
        self.operations.update(other.operations)
        self.checks.update(other.checks)
        self.virtual_s += other.virtual_s
        self.without_faults += other.without_faults
        self.failures += other.failures

    def never_fired(self, kinds: Iterable[str] = FAULTS) -> list[str]:
        """Kinds of faults without any effect so far."""
        return sorted(kind for kind in kinds if not self.faults[kind])

    def as_json(self, wall_s: float) -> dict[str, Any]:
        """For `--json`."""
        return {
            "seeds": self.seeds,
            "failed": [failure.seed for failure in self.failures],
            "wall_s": round(wall_s, 1),
            "seeds_per_s": round(self.seeds / wall_s, 2) if wall_s else 0.0,
            "virtual_s": round(self.virtual_s, 1),
            "faults": dict(sorted(self.faults.items())),
            "faults_fired": self.faults.total(),
            "never_fired": self.never_fired(),
            "seeds_without_faults": self.without_faults,
            "operations": dict(sorted(self.operations.items())),
            "checks": {one.value: self.checks[one.value] for one in Invariant},
        }


class _TooLong(Exception):
    """A seed takes so long that it will never end."""


def try_seed(seed: int, profile: str) -> Tally:
    """Run one seed; whatever it raises is a failure of that seed."""
    tally = Tally()
    signal.signal(signal.SIGALRM, _too_long)
    signal.setitimer(signal.ITIMER_REAL, LONGEST_SEED_S)
    try:
        tally.add(simulate_situation(seed, profile))
    except Exception as error:  # noqa: BLE001 - each is told, with its seed
        tally.seeds += 1
        tally.failures.append(_failure(seed, profile, error))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    return tally


def _too_long(*_: object) -> None:
    raise _TooLong(f"more than {LONGEST_SEED_S:g} s")


def _failure(seed: int, profile: str, error: Exception) -> Failure:
    notes = "\n".join(getattr(error, "__notes__", ())) or "".join(traceback.format_exception(error))
    lines = notes.splitlines()
    return Failure(
        seed=seed,
        profile=profile,
        reason=f"{type(error).__name__}: {error}",
        trace="\n".join(lines[-_TOLD_LINES:]),
    )


def _try_seeds(seeds: range, profile: str) -> Tally:
    tally = Tally()
    for seed in seeds:
        tally.merge(try_seed(seed, profile))
        gc.collect()  # during a simulation nothing is collected
    return tally


def run_seeds(
    seeds: range,
    profile: str,
    *,
    jobs: int,
    progress: Callable[[Tally, float], None],
    told: Callable[[Failure], None],
) -> tuple[Tally, float]:
    """Run them over so many processes; the tally and the real seconds that it took.

    `told` hears of each failure as soon as it is known.
    """
    began, tally = time.monotonic(), Tally()
    # A fresh interpreter each: nothing that one simulation leaves in memory is another's.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        work = [pool.submit(_try_seeds, some, profile) for some in _portions(seeds, jobs)]
        for done in work:
            part = done.result()
            for failure in part.failures:
                told(failure)
            tally.merge(part)
            progress(tally, time.monotonic() - began)
    return tally, time.monotonic() - began


def _portions(seeds: range, jobs: int) -> Iterator[range]:
    size = max(1, min(_AT_ONCE, len(seeds) // (2 * jobs)))
    for start in range(seeds.start, seeds.stop, size):
        yield range(start, min(start + size, seeds.stop))
