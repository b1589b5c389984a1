"""`python -m tests.simulation`: try many seeds, or one again. Exit codes: 0 all held, 1 not, 2 usage."""

from __future__ import annotations

import argparse
import json
import os
import sys

from tests.shares import Share
from tests.simulation.campaign import Failure, Tally, run_seeds, try_seed
from tests.simulation.silence import simulate_silence
from tests.simulation.situations import PROFILES, situation

_EXAMPLES = """examples:
  python -m tests.simulation --seeds 1000             the seeds 1 to 1000, on all processors
  python -m tests.simulation --seed 17                seed 17 alone, with what happened in it
  python -m tests.simulation --seeds 200 --profile leaders --jobs 1
  python -m tests.simulation --silence --seeds 100    promises of time, where nothing else happens
"""


def main() -> int:
    """Do what the command line asks for; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description="Run the whole platform under faults, on virtual time; a seed decides everything.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=_positive, default=100, help="how many (100)")
    parser.add_argument("--first", type=int, default=1, help="the first of them (1)")
    parser.add_argument("--share", type=Share.parse, default=Share(1, 1), help="only a share, 2/5")
    parser.add_argument("--seed", type=int, help="only this one, and tell what happened")
    parser.add_argument("--jobs", type=_positive, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--profile", choices=sorted(PROFILES), default="all", help="which faults")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--silence", action="store_true", help="promises of time alone, in silence")
    chosen = parser.parse_args()
    if chosen.silence:
        first = chosen.first if chosen.seed is None else chosen.seed
        return _silence(range(first, first + (chosen.seeds if chosen.seed is None else 1)))
    if chosen.seed is not None:
        return _one(chosen.seed, chosen.profile)
    seeds = chosen.share.of_range(range(chosen.first, chosen.first + chosen.seeds))
    sys.stderr.write(f"seeds {seeds.start} to {seeds.stop - 1}\n")
    tally, wall_s = run_seeds(
        seeds, chosen.profile, jobs=chosen.jobs, progress=_progress, told=_tell
    )
    sys.stderr.write("\n")
    if chosen.json:
        print(json.dumps(tally.as_json(wall_s)))
    else:
        _sum_up(tally, wall_s)
    return _exit_code(tally)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _silence(seeds: range) -> int:
    failed = 0
    for seed in seeds:
        try:
            print(simulate_silence(seed), flush=True)
        except Exception as error:  # noqa: BLE001 - each is told, with its seed
            failed += 1
            print(f"seed {seed} failed: {type(error).__name__}: {error}", flush=True)
    print(f"{len(seeds)} seeds, {failed} failed")
    return 1 if failed else 0


def _one(seed: int, profile: str) -> int:
    chosen = situation(seed, profile)
    print(f"seed {seed}: {chosen.shape}, {len(chosen.wishes)} sessions")
    print(f"faults about every {chosen.every_s:g} s: {', '.join(chosen.faults)}")
    tally = try_seed(seed, profile)
    for failure in tally.failures:
        _tell(failure)
    if not tally.failures:
        _sum_up(tally, 0.0)
    return _exit_code(tally)


def _progress(tally: Tally, wall_s: float) -> None:
    sys.stderr.write(
        f"\r{tally.seeds} seeds, {tally.seeds / wall_s:.1f}/s, "
        f"{tally.faults.total()} faults, {len(tally.failures)} failed "
    )
    sys.stderr.flush()


def _tell(failure: Failure) -> None:
    """On standard error, at once: a run may be ended before its end."""
    reason = failure.reason.partition("\n")[0]
    lines = [f"\nseed {failure.seed} failed: {reason}", failure.trace, f"again: {failure.replay}\n"]
    sys.stderr.write("\n".join(lines))
    sys.stderr.flush()


def _sum_up(tally: Tally, wall_s: float) -> None:
    rate = f", {tally.seeds / wall_s:.2f} a second" if wall_s else ""
    print(f"{tally.seeds} seeds{rate}; {tally.virtual_s / 3600:.1f} hours of virtual time")
    _table("faults", tally.faults)
    _table("operations", tally.operations)
    _table("invariants, and how often each was looked at", tally.checks)
    if tally.seeds >= len(tally.faults) and tally.never_fired():
        print("never fired: " + ", ".join(tally.never_fired()))
    print(f"{len(tally.failures)} failed, {tally.faults.total()} faults fired")


def _table(title: str, counts: dict[str, int]) -> None:
    print(f"{title}:")
    for name, count in sorted(counts.items(), key=lambda pair: -pair[1]):
        print(f"  {count:>9}  {name}")


def _exit_code(tally: Tally) -> int:
    if tally.failures:
        return 1
    if not tally.faults:
        print("no fault fired: this run has shown nothing")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
