"""The fair share of an account: what it holds and what it held lately, over its weight.

The rule. A GPU-second that is `age` seconds old counts 2^(-age / half_life). The sum over what an account
held, running sessions and ended ones, is divided by what one GPU held for ever comes to,
half_life / ln 2. So the past is an average in GPUs, in which late seconds count more: who has held 8
GPUs for long held 8 lately, who gave them back a half-life ago 4. Accounts are ordered, least first, by

    fair share = (GPUs held now + GPUs held lately) / weight

Half of it moves at once: an account that just got 50 GPUs comes after one that has none. The other half
lasts: of two that hold nothing, the one that used more comes later, and with one half-life for all that order
does not change by time alone, until it is so long ago that it counts no more (`PERIODS`).

Peers: Slurm lets usage decay (`PriorityDecayHalfLife`, 7 days) and orders by usage over entitlement; Grid
Engine's share tree has a half-life; LSF adds decayed run time and the slots that are held now.

How it is kept. The average follows what is held, a' = (held - a) ln 2 / half_life. So each change of what is held,
by g at an instant s, is a step which comes to g (1 - 2^(-(t - s) / half_life)) at t: an attempt that runs is one step
up, one that ended a step up and one down. Steps are summed by the half-life period in which they lie, counted
from 1970 and weighed to its beginning, as integers: in whatever order they are told the sum is the same, what is
taken out leaves nothing behind, nothing overflows, and a look costs a dozen numbers however much there was.
"""

from __future__ import annotations

from math import exp2
from typing import Final

from controlplane.domain.plan import FairShare
from controlplane.domain.values import DAY_S, WHOLE_DEVICE

HALF_LIFE_S: Final = 7.0 * DAY_S
PERIODS: Final = 10
"""Half-lives that count: what was used before the one in which we are and these has no weight any more. It
would have less than a thousandth."""
_ONE: Final = 1 << 40
"""A weight of 1: a second of one GPU is a million of these units at a half-life of a week, and more."""


def share_of(account: str, *, held: float, lately: float, weight: float) -> FairShare:
    """The fair share of an account that holds and held so many GPUs; `weight` is over 0."""
    return FairShare(account, held, lately, weight, value=(held + lately) / weight)


def counts_since(now: float, half_life_s: float) -> float:
    """The instant from which on what was used counts; Unix seconds."""
    return (now // half_life_s - PERIODS) * half_life_s


class Past:
    """What one account held over time.

    Args:
        half_life_s: more than 0.
    """

    __slots__ = ("_half_life_s", "_periods")

    def __init__(self, half_life_s: float = HALF_LIFE_S) -> None:
        self._half_life_s = half_life_s
        self._periods: dict[int, tuple[int, int]] = {}
        """By period: the sum of its steps, in thousandths of a GPU, and the same weighed to its beginning."""

    def step(self, gpu_thousandths: int, at: float) -> None:
        """From an instant on it held so much more, or less."""
        period, into_s = divmod(at, self._half_life_s)
        up, weighed = self._periods.get(int(period), (0, 0))
        # Whole numbers before they are multiplied: a step down undoes one up to the last bit.
        weight = round(exp2(into_s / self._half_life_s) * _ONE)
        self._periods[int(period)] = (up + gpu_thousandths, weighed + gpu_thousandths * weight)

    def held(self, gpu_thousandths: int, since: float, until: float) -> None:
        """It held so much from one instant to another."""
        if gpu_thousandths and until > since:
            self.step(gpu_thousandths, since)
            self.step(-gpu_thousandths, until)

    def lately(self, now: float) -> float:
        """The average at an instant, in GPUs; never less than 0.

        What lies in a period to come, since a clock was set back, has no age yet and counts nothing.
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
        # Of an account that holds nothing this is one number times the weight, which is all accounts' own.
        weight = exp2(-into_s / self._half_life_s)
        return max(held - weighed / (_ONE << PERIODS) * weight, 0.0) / WHOLE_DEVICE
