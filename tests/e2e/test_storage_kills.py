"""Datasets while client, control plane and agent are killed at any moment: what is acknowledged is there, and whole."""

import hashlib
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from bench.platform import PROGRAMS
from tests.e2e.programs import wait_for, write_program
from tests.support.in_process import Platform

KILLS = int(os.environ.get("NSML_STORAGE_KILLS", "6"))

HASHING = """\
import hashlib, pathlib, nsml
found = hashlib.sha256()
root = pathlib.Path(nsml.DATASET_PATH)
for path in sorted(root.rglob("*")):
    if path.is_file():
        found.update(str(path.relative_to(root)).encode())
        found.update(path.read_bytes())
print("digest", found.hexdigest())
"""


def change(tree: Path, chance: random.Random) -> None:
    """Some new files, some other content, some files less, and a few bytes more in the middle of a large one."""
    for _ in range(150):
        path = tree / str(chance.randrange(10)) / f"{chance.randrange(60)}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(chance.randbytes(chance.randrange(60_000)))
    for path in chance.sample(sorted(tree.rglob("*.bin")), 10):
        path.unlink()
    large = tree / "large"
    body = large.read_bytes() if large.exists() else chance.randbytes(12 << 20)
    at = chance.randrange(len(body))
    large.write_bytes(body[:at] + chance.randbytes(1_000) + body[at:])


def digest_of(tree: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(tree.rglob("*")):
        if path.is_file():
            found.update(str(path.relative_to(tree)).encode())
            found.update(path.read_bytes())
    return found.hexdigest()


@pytest.mark.long("it kills a platform over and over")
@pytest.mark.timeout(60 + 60 * KILLS)
def test_nothing_is_lost_or_corrupt_whoever_is_killed(tmp_path: Path) -> None:
    seed = int(os.environ.get("NSML_SEED", time.time_ns() % 1_000_000))
    print(f"NSML_SEED={seed}")
    chance = random.Random(seed)
    tree = tmp_path / "tree"
    tree.mkdir()
    with Platform(simulate_gpus=2) as platform:
        program = write_program(tmp_path / "program", HASHING)
        took_s = 2.0
        for number in range(KILLS):
            change(tree, chance)
            victim = chance.choice(["client", "controlplane", "agent"])
            print(number, victim, flush=True)
            if victim == "agent":
                platform.nsml("dataset", "push", "t", str(tree), timeout_s=300)
                check_session(platform, program, digest_of(tree), chance)
                continue
            began = time.monotonic()
            pushing = subprocess.Popen(
                [PROGRAMS / "nsml", "dataset", "push", "t", str(tree)],
                env=platform.environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            time.sleep(chance.uniform(0.3, took_s))
            if victim == "client":
                pushing.send_signal(signal.SIGKILL)
            else:
                platform.kill("controlplane")
                platform.up()
            pushing.wait(timeout=300)
            if pushing.returncode:
                platform.nsml("dataset", "push", "t", str(tree), timeout_s=300)
            else:
                took_s = time.monotonic() - began
            copy = tmp_path / "copy"
            platform.nsml("dataset", "pull", "t", str(copy), timeout_s=300)
            assert digest_of(copy / "t") == digest_of(tree), (
                "what was acknowledged is what is pulled"
            )
            shutil.rmtree(copy)


def check_session(platform: Platform, program: Path, digest: str, chance: random.Random) -> None:
    """A session whose agent is killed while it fetches its data sees all of it, or is run again."""
    run = platform.nsml("run", "-d", "t", "-g", "0", "-o", "name", cwd=program, timeout_s=180)
    session = run.stdout.strip()
    time.sleep(chance.uniform(0.0, 1.5))
    platform.kill("agent")
    platform.up()

    def said() -> str:
        return platform.nsml("logs", session, check=False).stdout

    wait_for(lambda: "digest " in said(), timeout_s=300, what="what the session read")
    assert f"digest {digest}" in said()
