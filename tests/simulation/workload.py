"""What users of a simulated cluster want, and what their programs do."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from controlplane.domain.values import WHOLE_DEVICE
from nsml.v1 import resources_pb2, sessions_pb2
from tests.support.fake_machine import Act, Script

OWNERS = ("kim", "lee", "park")
LOST_AFTER_S = 30.0
GRACE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One session.

    Attributes:
        key: names it in the trace and in its command line; its request id too.
        gpu_thousandths: for each replica.
        exit_codes: of each replica, by rank.
        lines: log lines and records that each replica writes, evenly over its time.
        stops_in_s: how long the program takes to obey SIGTERM; None: it never does.
        stop_after_s: its owner stops it so long after the submission was answered.
        saves: checkpoints that the first replica saves, of two names in turn.
    """

    key: str
    owner: str
    submit_at_s: float
    runs_for_s: float
    gpu_thousandths: int = WHOLE_DEVICE
    replicas: int = 1
    exit_codes: tuple[int, ...] = (0,)
    lines: int = 3
    stops_in_s: float | None = 0.0
    retries: int = 0
    stop_after_s: float | None = None
    saves: int = 0

    @property
    def device_count(self) -> int:
        return -(-self.gpu_thousandths // WHOLE_DEVICE)

    @property
    def share(self) -> int:
        """Thousandths that each of its replicas holds of each of its devices."""
        return min(self.gpu_thousandths, WHOLE_DEVICE)

    def script(self, rank: int) -> Script:
        """What the program of one replica does."""
        saves = self.saves if rank == 0 else 0
        steps = [*(self._line(rank, line) for line in range(self.lines))]
        steps += [self._save(number) for number in range(1, saves + 1)]
        pause = self.runs_for_s / (len(steps) + 1)
        return Script(
            acts=[*(replace(step, after_s=pause) for step in steps), Act(after_s=pause)],
            exit_code=self.exit_codes[rank],
            stops_in_s=self.stops_in_s,
        )

    def _line(self, rank: int, line: int) -> Act:
        """Every other with more gaps before its records than are told where they are."""
        has_gaps = line % 2 == 1
        record = {"kind": "metric", "time": 0.0, "step": line, "values": {"loss": line + rank}}
        return Act(
            output=f"{self.key}.{rank} line {line}\n".encode(),
            records=[record] * (12 if has_gaps else 1),
            lost=2 if has_gaps else 0,
        )

    def _save(self, number: int) -> Act:
        """As the SDK saves: the folder first, then the record that tells of it."""
        content = f"{self.key} weights {number}".encode()
        name = f"epoch-{number % 2}"
        folder = f"{number}-{name}"
        return Act(
            files={f"checkpoints/{folder}/model/weights": content},
            records=[
                {
                    "kind": "checkpoint",
                    "time": float(number),
                    "name": name,
                    "folder": folder,
                    "files": [["model/weights", len(content)]],
                    "size": len(content),
                }
            ],
        )

    def request(self) -> sessions_pb2.CreateSessionRequest:
        """Its submission."""
        spec = sessions_pb2.SessionSpec(
            argv=["simulated", self.key],
            resources=resources_pb2.Resources(gpu_thousandths=self.gpu_thousandths),
            replica_count=self.replicas,
            retry_count=self.retries,
        )
        spec.grace.FromSeconds(round(GRACE_S))
        if self.retries:
            spec.lost_after.FromSeconds(round(LOST_AFTER_S))
        return sessions_pb2.CreateSessionRequest(request_id=f"request-{self.key}", spec=spec)


def patient(rng: random.Random, count: int) -> dict[str, Wish]:
    """So many long sessions that are repeated when their node is lost, by key."""
    return {
        f"w{number}": Wish(
            key=f"w{number}",
            owner=rng.choice(OWNERS),
            submit_at_s=rng.uniform(0.0, 10.0),
            runs_for_s=rng.uniform(100.0, 200.0),
            replicas=rng.choice((1, 1, 2)),
            exit_codes=(0, 0),
            retries=5,
        )
        for number in range(count)
    }


def mixed(rng: random.Random, count: int, *, over_s: float = 60.0) -> dict[str, Wish]:
    """So many sessions of all kinds, submitted over `over_s` seconds, by key."""
    return {wish.key: wish for wish in _mixed(rng, count, over_s)}


def _mixed(rng: random.Random, count: int, over_s: float) -> Iterator[Wish]:
    for number in range(count):
        replicas = 2 if rng.random() < 0.2 else 1
        is_long = rng.random() < 0.5
        fails = rng.random() < 0.2
        stopped = rng.random() < 0.15
        yield Wish(
            key=f"w{number}",
            owner=rng.choice(OWNERS),
            submit_at_s=rng.uniform(0.0, over_s),
            runs_for_s=rng.uniform(10.0, 90.0) if is_long else rng.choice((0.0, rng.uniform(0, 3))),
            gpu_thousandths=rng.choice((0, 500, 1000, 1000, 1000, 2000)),
            replicas=replicas,
            exit_codes=tuple(
                rng.choice((1, 2, 77)) if fails and rng.random() < 0.7 else 0
                for _ in range(replicas)
            ),
            lines=rng.choice((0, 1, 5)),
            stops_in_s=rng.choice((0.0, 1.0, None)),
            retries=rng.choice((0, 0, 3)),
            stop_after_s=rng.expovariate(1 / 20) if stopped else None,
            saves=rng.choice((0, 0, 1, 3)),
        )


def brief(rng: random.Random, count: int, *, largest: int, gang: int) -> dict[str, Wish]:
    """A few sessions that are over soon, by key.

    Args:
        largest: devices of a node, so that all of them fit somewhere.
        gang: most replicas that one may have.
    """
    return {wish.key: wish for wish in _brief(rng, count, largest, gang)}


def _brief(rng: random.Random, count: int, largest: int, gang: int) -> Iterator[Wish]:
    for number in range(count):
        replicas = rng.choice((1, 1, gang))
        yield Wish(
            key=f"w{number}",
            owner=rng.choice(OWNERS),
            submit_at_s=rng.uniform(0.0, 10.0),
            runs_for_s=rng.choice((0.0, rng.uniform(0.0, 3.0), rng.uniform(3.0, 25.0))),
            gpu_thousandths=rng.choice((0, 500, 1000, 1000 * rng.randint(1, largest))),
            replicas=replicas,
            exit_codes=tuple(
                rng.choice((1, 77)) if rng.random() < 0.15 else 0 for _ in range(replicas)
            ),
            lines=rng.choice((0, 1, 4)),
            stops_in_s=rng.choice((0.0, 1.0, None)),
            retries=rng.choice((0, 0, 3)),
            stop_after_s=rng.expovariate(1 / 8) if rng.random() < 0.2 else None,
            saves=rng.choice((0, 0, 1, 3)),
        )
