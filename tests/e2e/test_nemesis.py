"""Random kills, pauses and restarts under a stream of sessions: nothing is lost, doubled or left.

NSML_SOAK_SECONDS=120 asks for the long run, NSML_SEED repeats one.
"""

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeagent.engine.containers import containers_of
from tests.e2e.nemesis import SOAKING, Crowd, Faults, Stream, Witnesses, check
from tests.e2e.platforms import invitation, join_second
from tests.e2e.programs import wait_for
from tests.engines import required_engine, required_image
from tests.support.in_process import Platform

SHORT_S = 12.0
SOAK_S = float(os.environ.get("NSML_SOAK_SECONDS", "120"))
STEADY_S = float(os.environ.get("NSML_STEADY_SECONDS", "300"))


def seeded() -> random.Random:
    seed = int(os.environ.get("NSML_SEED", random.randrange(1 << 32)))
    print("NSML_SEED", seed)
    return random.Random(seed)


@contextmanager
def two_agents(
    options: list[str],
    gpus: int,
    environment: dict[str, str],
    second_has: dict[str, str] | None = None,
) -> Iterator[tuple[Platform, Callable[[], object], Witnesses]]:
    """A platform with a second node, what starts that one's agent, and the witnesses of both.

    `second_has` are variables of the second agent's.
    """
    listening = ["--listen", "127.0.0.1:0", *options]
    with Platform(simulate_gpus=gpus, options=listening, environment=environment) as platform:
        # once: there may be no control plane to ask for another
        invited = invitation(platform)

        def join() -> Path:
            return join_second(platform, invited, gpus=gpus, environment=second_has)

        second = join()
        witnesses = Witnesses(platform, [platform.folder / "data", second])
        try:
            yield platform, join, witnesses
        finally:
            witnesses.close()
            platform.nsml("down", "-y", "--data", str(second), check=False, timeout_s=120)


def torment(options: list[str], seconds: float) -> None:
    rng = seeded()
    with two_agents(options, 2, {}) as (platform, join, witnesses):
        faults = Faults(platform, rng, join)
        stream = Stream(platform, random.Random(rng.random()), gangs=True)
        wait_for(witnesses.all, what="the first program has begun")
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at or not enough(faults, stream):
            time.sleep(rng.uniform(0.1, 1.5))
            faults.one()
        judge(platform, witnesses, stream, faults)


def enough(faults: Faults, stream: Stream) -> bool:
    """Whether so much has happened that something could have gone wrong."""
    are_to_end = [wanted for wanted in stream.acknowledged if wanted.kind in {"report", "fails"}]
    return faults.fired.total() >= 2 and len(stream.acknowledged) >= 2 and bool(are_to_end)


def judge(platform: Platform, witnesses: Witnesses, stream: Stream, faults: Faults) -> None:
    stream.close()
    faults.heal()
    print(dict(faults.fired), len(stream.acknowledged), "acknowledged", stream.refused)
    wrong = check(platform, witnesses, stream)
    assert not wrong, "\n".join(wrong)
    assert enough(faults, stream)
    assert any(line.word == "end" for lines in witnesses.all().values() for line in lines)


@pytest.mark.long("faults need time to show")
@pytest.mark.variant  # of the short run in test_chaos.py: other faults, the same promises
def test_a_moment_of_faults():
    torment([], SHORT_S)


@pytest.mark.parametrize("options", [pytest.param(["--embedded"], marks=SOAKING)])
def test_a_long_run_of_faults(options):
    """Of the store that etcd is not; with etcd it is `nsml doctor chaos` (test_chaos.py)."""
    torment(options, SOAK_S)


@pytest.mark.parametrize(
    ("seconds", "size"), [pytest.param(STEADY_S, 40, marks=SOAKING, id="five minutes")]
)
def test_forty_sessions_report_while_agents_and_control_plane_are_killed(seconds, size):
    """Every report whose call returned, every byte, and no device for two: by the programs' own word."""
    rng = seeded()
    # Half a device for each of them, and room for all; what is shared is the machine's two cores.
    room = {"NSML_AGENT_CPUS": "64", "NSML_AGENT_MEMORY_BYTES": str(64 << 30)}
    contained = containers_if_any()
    with two_agents([], size // 4, room, contained) as (platform, join, witnesses):
        faults = Faults(platform, rng, join)
        crowd = Crowd(platform, random.Random(rng.random()), size=size)
        wait_for(lambda: len(witnesses.all()) >= size // 2, timeout_s=120, what="half have begun")
        began, before = time.monotonic(), reports(witnesses)
        faults.at_random_moments({"agents": 10.0, "controlplane": 25.0}, seconds)
        lasted_s = time.monotonic() - began
        rate = (reports(witnesses) - before) / lasted_s
        print(f"{rate:.0f} reports a second over {lasted_s:.0f} s")
        judge(platform, witnesses, crowd, faults)
        if contained:
            mark = (platform.folder / "second/agent/engine.mark").read_text()
            engine, _ = required_engine()
            wait_for(lambda: not containers_of(engine, mark), what="no container is left")


def containers_if_any() -> dict[str, str]:
    """What makes an agent run its sessions in containers, gangs too; empty without an engine."""
    try:
        engine, _ = required_engine()
        image = required_image()
    except pytest.skip.Exception as reason:
        print("both agents run processes:", reason)
        return {}
    return {
        "NSML_AGENT_ISOLATION": "container",
        "NSML_AGENT_ENGINE_SOCKET": str(engine.socket),
        "NSML_AGENT_DEFAULT_IMAGE": image,
        "NSML_AGENT_GANG_NETWORK": "host",
    }


def reports(witnesses: Witnesses) -> int:
    return sum(line.word == "report" for lines in witnesses.all().values() for line in lines)
