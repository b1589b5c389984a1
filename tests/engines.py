"""The container engine that tests use: where it is, and the image that they run.

Where none answers they are skipped with the reason; with NSML_REQUIRE_DOCKER=1 that is a failure.
The engine is DOCKER_HOST's, else the machine's own. The image is built from Debian's packages by the
recipe of `deploy/image` and stays in the engine under a tag of the recipe. `python -m tests.engines`
builds it ahead of the tests.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from nodeagent.engine.client import Engine, EngineError, EngineFacts, NotThere
from nodeagent.engine.images import stored_image

RECIPE = Path(__file__).parents[1] / "deploy" / "image" / "build"
SOCKET = Path(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://"))


def required_engine() -> tuple[Engine, EngineFacts]:
    """The engine; skips or fails the test where there is none."""
    found, reason = _engine()
    if found is None:
        absent(f"no container engine: {reason}")
    return found


def required_image() -> str:
    """The tag of an image with Python; skips or fails the test where it cannot be had."""
    tag, reason = _image()
    if tag is None:
        absent(f"no image: {reason}")
    return tag


def absent(reason: str) -> None:
    if os.environ.get("NSML_REQUIRE_DOCKER") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def remove_with_mounts(folder: Path) -> None:
    """Remove the folder of an engine that ended, and what it left mounted below it."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    places = [line.split()[4] for line in lines]
    for place in reversed([one for one in places if one.startswith(f"{folder}/")]):
        subprocess.run(["umount", "-l", place], capture_output=True, check=False)
    shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def _engine() -> tuple[tuple[Engine, EngineFacts] | None, str]:
    engine = Engine(SOCKET)
    try:
        facts = engine.facts()
    except EngineError as error:
        return None, str(error)
    if not facts.has_init:
        return None, "it has no docker-init"
    return (engine, facts), ""


@functools.cache
def _image() -> tuple[str | None, str]:
    engine, _ = required_engine()
    recipe = hashlib.sha256(RECIPE.read_bytes()).hexdigest()
    tag = f"nsml-base:{recipe[:12]}"
    with Path(tempfile.gettempdir(), f"{tag}-{os.geteuid()}.lock").open("w") as lock:
        # Test processes side by side build it once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            stored_image(engine, tag)
        except NotThere:
            built = subprocess.run(
                [str(RECIPE), tag],
                env={**os.environ, "DOCKER_HOST": f"unix://{SOCKET}"},
                capture_output=True,
                text=True,
                check=False,
            )
            if built.returncode:
                return None, built.stderr.strip()[-500:] or "the recipe failed"
    return tag, ""


if __name__ == "__main__":
    print(required_image())
