"""Platforms of the end-to-end tests: in containers, with a second node, with further users."""

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from nodeagent.engine.client import Engine
from nodeagent.engine.containers import containers_of
from nodeagent.engine.images import remove_image
from tests.e2e.programs import wait_for
from tests.engines import SOCKET, required_engine, required_image
from tests.support.in_process import Platform

LEVELS = ["processes", pytest.param("containers", marks=pytest.mark.variant)]
"""What programs of a session run in."""


def invitation(platform: Platform) -> tuple[str, str]:
    """Where another machine joins the platform, and a token for it."""
    made = platform.nsml("admin", "join-token")
    told = re.search(r"nsml join (\S+)\n", made.stderr)
    assert told, made.stderr
    return told[1], made.stdout


def join_second(
    platform: Platform,
    invited: tuple[str, str],
    *options: str,
    gpus: int = 1,
    by: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Path:
    """Start the agent of a node "second" with simulated GPUs; its data folder."""
    server, token = invited
    folder = platform.folder / "second"
    platform.nsml(
        *("join", server, "--token", "-", "--name", "second", "--simulate-gpus", str(gpus)),
        *("--data", str(folder), *options),
        stdin=token,
        timeout_s=120,
        by=by,
        environment=dict(environment or {}),
    )
    return folder


def taken(platform: Platform, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What comes of a command once its platform decides again.

    After a fault it may answer for a while that this passes; users, too, are told to come again.
    """

    def decided() -> subprocess.CompletedProcess[str] | None:
        done = platform.nsml(*arguments, check=False)
        return None if done.returncode == 3 and "again in" in done.stderr else done

    return wait_for(decided, what=f"nsml {' '.join(arguments)} is decided")


def user_of(platform: Platform, name: str, folder: Path, *more: str) -> dict[str, str]:
    """A new user, as the environment of their command lines."""
    platform.nsml("admin", "user", "add", name, *more)
    file = folder / f"{name}.token"
    file.write_text(platform.nsml("admin", "user", "token", name).stdout.split()[-1])
    file.chmod(0o600)
    file.chmod(0o600)
    return {"NSML_TOKEN_FILE": str(file)}


def contained_platform(*options: str) -> Platform:
    """A platform whose sessions run in containers; skips or fails the test where there is no engine."""
    engine, _ = required_engine()
    return Platform(
        simulate_gpus=2,
        options=["--isolation", "container", *options],
        environment={
            "NSML_AGENT_ENGINE_SOCKET": str(engine.socket),
            "NSML_AGENT_DEFAULT_IMAGE": required_image(),
        },
    )


def platform_of(level: str, *options: str) -> Platform:
    """A platform of one of the LEVELS, with further options of `nsml up`."""
    if level == "containers":
        return contained_platform(*options)
    return Platform(simulate_gpus=2, options=options)


_MADE_IMAGE = re.compile(r"nsml-env:[0-9a-f]{32}(?:\.[0-9]+)?")

HAS_ENDED = 6
"""What `nsml stop` says of a session that came to its end by itself meanwhile."""


def end_all(platform: Platform, level: str) -> None:
    """Stop all sessions; of containers none is left."""
    for name in platform.nsml("ps", "--submissions", "-o", "name").stdout.split():
        stopped = platform.nsml("stop", "-y", name, check=False)
        assert stopped.returncode in {0, HAS_ENDED}, stopped.stderr
    if level == "containers":
        nothing_is_left_in_engine(platform)


def nothing_is_left_in_engine(platform: Platform) -> None:
    """Ends when no container of the platform's agent is there any more."""
    engine, _ = required_engine()
    mark = (platform.folder / "data/agent/engine.mark").read_text()
    wait_for(lambda: containers_of(engine, mark) == [], what="containers are gone")


@contextmanager
def without_its_images(platform: Platform) -> Iterator[Platform]:
    """Run a platform; after its end remove the images that its agent made, with packages on another one."""
    made: set[str] = set()

    def remove() -> None:
        for name in made:
            remove_image(Engine(SOCKET), name)

    with ExitStack() as last, platform as running:
        last.callback(remove)
        try:
            yield running
        finally:
            records = (running.folder / "data/agent/images").glob("*.json")
            made.update(*(_MADE_IMAGE.findall(one.read_text()) for one in records))
