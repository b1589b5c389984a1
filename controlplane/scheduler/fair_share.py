"""The fair share of an account: its current and recent GPUs, over its weight.

The rule. A GPU-second that is `age` seconds old counts 2^(-age / half_life). The sum over an account's
running and ended sessions is divided by that of one GPU held for ever, half_life / ln 2. So the past is
an average in GPUs, in which recent seconds count more: an account that has held 8 GPUs for long held 8
lately; one that released them a half-life ago, 4. Accounts are ordered, least first, by

    fair share = (GPUs held now + GPUs held lately) / weight

One half changes at once: an account that just got 50 GPUs comes after one that has none. The other half
lasts: of two that hold nothing, the one that used more comes later, and with one half-life for all this order
does not change by time alone, until the use is too long ago to count (`PERIODS`).

Peers: Slurm lets usage decay (`PriorityDecayHalfLife`, 7 days) and orders by usage over entitlement; Grid
Engine's share tree has a half-life; LSF adds decayed run time and the slots held now.

Implementation. The average follows the held GPUs, a' = (held - a) ln 2 / half_life. So each change of them,
by g at an instant s, is a step that contributes g (1 - 2^(-(t - s) / half_life)) at t: a running attempt is one step
up, an ended one a step up and one down. Steps are summed by their half-life period, counted from 1970, and
weighted relative to its beginning, as integers: the sum does not depend on their order, removal leaves no
remainder, nothing overflows, and a query costs a dozen numbers however long the past is.
"""

from __future__ import annotations

from math import exp2
from typing import Final

from controlplane.domain.plan import FairShare
from controlplane.domain.values import DAY_S, WHOLE_DEVICE

HALF_LIFE_S: Final = 7.0 * DAY_S
PERIODS: Final = 10
"""Half-lives that count, before the current one: earlier use has no weight. It would be less than a
thousandth."""
_ONE: Final = 1 << 40
"""A weight of 1: a second of one GPU is at least a million of these units at a half-life of a week."""


def share_of(account: str, *, held: float, lately: float, weight: float) -> FairShare:
    """Return the fair share of an account by its current and recent GPUs; `weight` is over 0."""
    return FairShare(account, held, lately, weight, value=(held + lately) / weight)


def counts_since(now: float, half_life_s: float) -> float:
    """Return the instant since when use counts; Unix seconds."""
    return (now // half_life_s - PERIODS) * half_life_s


class Past:
    """Past use of one account.

    Args:
        half_life_s: more than 0.
    """

    __slots__ = ("_half_life_s", "_periods")

    def __init__(self, half_life_s: float = HALF_LIFE_S) -> None:
        self._half_life_s = half_life_s
        self._periods: dict[int, tuple[int, int]] = {}
        """By period: the sum of its steps, in thousandths of a GPU, and the same weighted relative to its beginning."""

    def step(self, gpu_thousandths: int, at: float) -> None:
        """Add a change of its held GPUs at an instant; negative: a decrease."""
        period, into_s = divmod(at, self._half_life_s)
        up, weighed = self._periods.get(int(period), (0, 0))
        # Rounded before the multiplication: a step down cancels a step up exactly.
        weight = round(exp2(into_s / self._half_life_s) * _ONE)
        self._periods[int(period)] = (up + gpu_thousandths, weighed + gpu_thousandths * weight)

    def held(self, gpu_thousandths: int, since: float, until: float) -> None:
        """Add GPUs held from one instant to another."""
        if gpu_thousandths and until > since:
            self.step(gpu_thousandths, since)
            self.step(-gpu_thousandths, until)

    def lately(self, now: float) -> float:
        """Return the average at an instant, in GPUs; never less than 0.

        Steps in a future period, after a clock was set back, do not count.
        """
        present, into_s = divmod(now, self._half_life_s)
        held = weighed = 0
        for period, (up, its) in self._periods.items():
            age = int(present) - period
            if age < 0:
                continue
            held += up
            if age <= PERIODS:
                weighed += its << (PERIODS - age)
        # For an account that holds nothing this is one number times the weight, which is equal for all accounts.
        weight = exp2(-into_s / self._half_life_s)
        return max(held - weighed / (_ONE << PERIODS) * weight, 0.0) / WHOLE_DEVICE
