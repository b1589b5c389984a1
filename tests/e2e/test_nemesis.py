"""Random kills, pauses and restarts under a stream of sessions: nothing is lost, doubled or left.

NSML_SOAK_SECONDS=120 asks for the long run, NSML_SEED repeats one.
"""

import os
import random
import re
import time

import pytest

from bench.platform import Platform
from tests.e2e.nemesis import SOAKING, Faults, Stream, Witnesses, check
from tests.e2e.programs import wait_for

SHORT_S = 12.0
SOAK_S = float(os.environ.get("NSML_SOAK_SECONDS", "120"))


def torment(options: list[str], seconds: float) -> None:
    seed = int(os.environ.get("NSML_SEED", random.randrange(1 << 32)))
    print("NSML_SEED", seed)
    rng = random.Random(seed)
    with Platform(simulate_gpus=2, options=["--listen", "127.0.0.1:0", *options]) as platform:
        made = platform.nsml("admin", "join-token")
        told = re.search(r"nsml join (\S+) --token", made.stderr)
        assert told, made.stderr
        second = platform.folder / "second"

        def join() -> None:
            arguments = ("--token", "-", "--name", "second", "--simulate-gpus", "1")
            platform.nsml(
                *("join", told[1], *arguments, "--data", str(second)),
                stdin=made.stdout,
                timeout_s=120,
            )

        join()
        witnesses = Witnesses(platform, [platform.folder / "data", second])
        try:
            faults = Faults(platform, rng, join)
            stream = Stream(platform, random.Random(seed), gangs=True)
            wait_for(witnesses.all, what="the first program has begun")
            ends_at = time.monotonic() + seconds
            while time.monotonic() < ends_at:
                time.sleep(rng.uniform(0.1, 1.5))
                faults.one()
            stream.close()
            faults.heal()
            print(dict(faults.fired), len(stream.acknowledged), "acknowledged", stream.refused)
            wrong = check(platform, witnesses, stream)
            assert not wrong, "\n".join(wrong)
            assert sum(faults.fired.values()) >= 2
            assert len(stream.acknowledged) >= 2
            assert any(line.word == "end" for lines in witnesses.all().values() for line in lines)
        finally:
            witnesses.close()
            platform.nsml("down", "-y", "--data", str(second), check=False, timeout_s=120)


def test_a_moment_of_faults():
    torment([], SHORT_S)


@pytest.mark.parametrize(
    "options",
    [pytest.param([], id="etcd", marks=SOAKING), pytest.param(["--embedded"], marks=SOAKING)],
)
def test_a_long_run_of_faults(options):
    torment(options, SOAK_S)
