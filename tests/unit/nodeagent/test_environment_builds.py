"""Environments that are built before a session needs them, for as long as somebody waits."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.engine.pulls import Login
from nodeagent.environment_builds import Asked, Built, EnvironmentBuilds, InImages, OnMachine
from nodeagent.environments.dockerfile_builds import Context, Recipe, build_key
from nodeagent.environments.errors import EnvironmentCancelled, EnvironmentFailed
from nsml.common.clock import SystemClock, in_own_thread
from nsml.packages.requirements import HERE
from nsml.v1 import resources_pb2 as pb
from tests.support.sandboxes import environments_in
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from nodeagent.environment_builds import Provide
    from nsml.packages.requirements import Requirements


class Hand(SystemClock):
    """Goes on as a test says; whoever sleeps looks again at once."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, _seconds: float) -> None:
        await asyncio.sleep(0.01)


def builds_with(provide: Provide, clock: SystemClock) -> EnvironmentBuilds:
    return EnvironmentBuilds(
        provide, most=(2, 1), reader=lambda **_: HERE, clock=clock, run_long=in_own_thread
    )


async def end_of(
    builds: EnvironmentBuilds, owner: str, build_id: str, known: int = 0
) -> pb.EnvironmentBuild:
    """How a build ends; `log` is all that it said after `known` bytes."""
    said = b""
    async with asyncio.timeout(120):
        while True:
            found = builds.look(owner, build_id, known + len(said))
            assert found.log_offset == known + len(said)
            said += found.log
            if found.state != pb.ENVIRONMENT_BUILD_STATE_RUNNING:
                found.log = said
                return found
            await asyncio.sleep(0.01)


async def test_what_was_built_ahead_is_what_a_session_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wheels").mkdir()
    make_wheel(tmp_path / "wheels", "small")
    for name, value in (("CONFIG_FILE", "/dev/null"), ("NO_INDEX", "1")):
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    environments = environments_in(tmp_path)
    files = pb.EnvironmentFiles(texts={"requirements.txt": "-r more.txt", "more.txt": "small"})
    async with builds_with(OnMachine(environments), SystemClock()) as builds:
        assert builds.start("u.kim", "1", files).build_id == "1"
        first = await end_of(builds, "u.kim", "1")
        assert (first.state, first.was_there) == (pb.ENVIRONMENT_BUILD_STATE_DONE, False)
        assert b"+ small==1.0" in first.log
        assert first.lock.startswith("small==1.0 --hash=sha256:")
        assert environments.owner(first.key) == "u.kim"
        assert builds.look("u.lee", "1", 0).state == pb.ENVIRONMENT_BUILD_STATE_UNKNOWN
        builds.start("u.kim", "2", files)
        again = await end_of(builds, "u.kim", "2")
        assert (again.key, again.was_there, again.log) == (first.key, True, b"")
        files.refresh = True
        builds.start("u.kim", "3", files)
        assert (await end_of(builds, "u.kim", "3")).key == f"{first.key}.2"
        for texts in ({"requirements.txt": "absent"}, {"requirements.txt": "-e ."}):
            builds.start("u.kim", str(texts), pb.EnvironmentFiles(texts=texts))
            failed = await end_of(builds, "u.kim", str(texts))
            assert failed.state == pb.ENVIRONMENT_BUILD_STATE_FAILED
            assert next(iter(texts.values())) in failed.words


class Endless:
    """Builds until it is cancelled."""

    in_containers = False

    def from_dockerfile(self, _files: pb.EnvironmentFiles, _asked: Asked) -> Built:
        raise NotImplementedError

    def __init__(self) -> None:
        self.began, self.ended = threading.Event(), threading.Event()

    def __call__(self, _wanted: Requirements, asked: Asked) -> Built:
        asked.say(b"x" * (3 << 20))
        self.began.set()
        assert asked.cancelled.wait(120)
        self.ended.set()
        raise EnvironmentCancelled


async def test_builds_are_few_and_end_when_nobody_waits(tmp_path: Path) -> None:
    assert tmp_path.is_absolute()
    clock, endless = Hand(), Endless()
    async with builds_with(endless, clock) as builds:
        builds.start("u.kim", "1", pb.EnvironmentFiles())
        await asyncio.to_thread(endless.began.wait)
        assert "of yours already" in builds.start("u.kim", "2", pb.EnvironmentFiles()).words
        builds.start("u.lee", "3", pb.EnvironmentFiles())
        assert builds.start("u.moe", "4", pb.EnvironmentFiles()).words
        told = builds.look("u.kim", "1", 0)
        # a long log loses its beginning, and is told in pieces
        assert (told.log_offset, len(told.log)) == (2 << 20, 64 << 10)
        clock.now = 19.0
        builds.look("u.lee", "3", 0)
        clock.now = 30.0
        await asyncio.to_thread(endless.ended.wait)
        ended = await end_of(builds, "u.kim", "1", 3 << 20)
        assert "no client was waiting" in ended.words
        builds.cancel("u.moe", "3")
        assert builds.look("u.lee", "3", 3 << 20).state == pb.ENVIRONMENT_BUILD_STATE_RUNNING
        builds.cancel("u.lee", "3")
        assert "cancelled" in (await end_of(builds, "u.lee", "3", 3 << 20)).words


class OneImage:
    """Provides one image, and keeps with which logins, and what its build held meanwhile."""

    folder = Path()
    """Of the last Dockerfile."""

    @contextmanager
    def context_folder(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as folder:
            self.folder = Path(folder)
            yield self.folder

    def provide_built(
        self, recipe: Recipe, *_args: object, use: Callable[[str], object], **given: Any
    ) -> str:
        use("base")
        self.seen.append((given["logins"], self.uses()))
        context = Context(recipe, threading.Event())
        return f"sha256:{build_key(recipe, {}, context, owner=given['owner'])}"

    def __init__(self) -> None:
        self.uses: Callable[[], frozenset[str]] = frozenset
        self.seen: list[tuple[Mapping[str, Login], frozenset[str]]] = []

    def resolve(self, _asked: str, wanted: str | None) -> tuple[str, str]:
        return wanted or "", ""

    def has_default_packages(self, *_: object) -> bool:
        return False

    def provide(self, *_args: object, use: Callable[[str], object], **given: Any) -> str:
        use("base")
        use("derived")
        self.seen.append((given["logins"], self.uses()))
        raise EnvironmentFailed("as if")


async def test_a_build_has_its_owners_logins_and_keeps_its_images_until_it_ends() -> None:
    images = OneImage()
    in_images = InImages(images)  # type: ignore[arg-type]
    images.uses = in_images.uses
    logins = {"lab.example": Login(registry="lab.example", user="kim", password="pw", version=1)}
    files = pb.EnvironmentFiles(texts={"requirements.txt": "#nsml: lab.example/torch"})
    async with builds_with(in_images, SystemClock()) as builds:
        builds.start("u.kim", "1", files, logins)
        assert (await end_of(builds, "u.kim", "1")).words == "as if"
    assert images.seen == [(logins, {"image base", "image derived"})]
    assert in_images.uses() == frozenset()


async def test_a_dockerfile_is_built_of_what_a_session_would_have(tmp_path: Path) -> None:
    """Else a session with the same files would not find it."""
    code = {"Dockerfile": b"FROM a\nCOPY . /", "bin/tool": b"\xff"}
    for path, content in code.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(content)
    (tmp_path / "bin/tool").chmod(0o755)
    recipe = Recipe(folder=tmp_path, path="Dockerfile", arguments={"A": "b"})
    expected = build_key(recipe, {}, Context(recipe, threading.Event()), owner="u.kim")
    images = OneImage()
    in_images = InImages(images)  # type: ignore[arg-type]
    images.uses = in_images.uses
    files = pb.EnvironmentFiles(dockerfile="Dockerfile", build_arguments={"A": "b"})
    for path, content in code.items():
        files.context.add(path=path, content=content, executable=path == "bin/tool")
    logins = {"lab.example": Login(registry="lab.example", user="kim", password="pw", version=1)}
    async with builds_with(in_images, SystemClock()) as builds:
        builds.start("u.kim", "1", files, logins)
        built = await end_of(builds, "u.kim", "1")
        assert (built.state, built.key) == (
            pb.ENVIRONMENT_BUILD_STATE_DONE,
            f"sha256:{expected}",
        )
        assert images.seen == [(logins, {"image base"})]
        assert not images.folder.exists()
        files.context.add(path="../outside", content=b"")
        builds.start("u.kim", "2", files)
        assert "is not the path of a file" in (await end_of(builds, "u.kim", "2")).words
    assert in_images.uses() == frozenset()
    async with builds_with(OnMachine(environments_in(tmp_path)), SystemClock()) as builds:
        builds.start("u.kim", "3", files)
        assert "without containers" in (await end_of(builds, "u.kim", "3")).words
