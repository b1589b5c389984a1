"""A pytest plugin: a share of many long tests, so that a number of runs do all of them.

`--share 2/5` keeps the second of five shares of what is collected. Tests are dealt by what they are
recorded to take, the longest first, each to the share with the least so far: the shares are alike in
length and do not depend on the order of collection. `python -m tests.shares 5` prints the share of the
current commit, for `.ci/run`: commits differ at random, so a few runs do all shares.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import pytest

from tests.durations import RECORD, SHORT_S


@dataclass(frozen=True)
class Share:
    """The `number`-th of `of` shares, counted from 1."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "2/5"; raises ValueError for anything else."""
        number, _, of = text.partition("/")
        share = cls(int(number), int(of or "0"))
        if not 1 <= share.number <= share.of:
            raise ValueError(f"not a share: {text!r}; for example 2/5")
        return share

    @classmethod
    def of_commit(cls, commit: str, of: int) -> Self:
        """The share of a commit, given as hexadecimal digits."""
        return cls(int(commit, 16) % of + 1, of)

    def of_range(self, numbers: range) -> range:
        """A block of `numbers`: the blocks of all shares are disjoint and cover it."""
        size = len(numbers)
        start, stop = ((size * part) // self.of for part in (self.number - 1, self.number))
        return numbers[start:stop]

    def of_tests(self, tests: Iterable[str], seconds: Mapping[str, float]) -> set[str]:
        """Those of `tests` that are dealt to this share."""
        sums = [0.0] * self.of
        dealt: set[str] = set()
        for test in sorted(tests, key=lambda test: (-seconds.get(test, SHORT_S), test)):
            least = sums.index(min(sums))
            sums[least] += seconds.get(test, SHORT_S)
            if least == self.number - 1:
                dealt.add(test)
        return dealt

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--share`."""
    parser.addoption("--share", metavar="K/N", help="run only the K-th of N shares of the tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of other shares."""
    if not (text := config.getoption("--share")):
        return
    try:
        share = Share.parse(text)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    kept = share.of_tests([item.nodeid for item in items], recorded_seconds())
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
    items[:] = [item for item in items if item.nodeid in kept]


def recorded_seconds() -> dict[str, float]:
    """Wall-clock seconds of each recorded test, by node id."""
    record = json.loads(RECORD.read_text())
    return {test: wall_s for test, (wall_s, _) in record["tests"].items()}


def main() -> int:
    """Print the share of the current commit."""
    parser = argparse.ArgumentParser(prog="python -m tests.shares", description=main.__doc__)
    parser.add_argument("of", type=int, help="how many shares there are")
    of = parser.parse_args().of
    command = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or of < 1:
        print(
            f"no share: {done.stderr.strip() or f'{of} is not a number of shares'}", file=sys.stderr
        )
        return 2
    print(Share.of_commit(done.stdout.strip(), of))
    return 0


if __name__ == "__main__":
    sys.exit(main())
