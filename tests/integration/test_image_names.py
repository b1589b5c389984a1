"""Names of users in images, read through a real engine: once an image, and unpacked without the agent's rights."""

from __future__ import annotations

import io
import tarfile
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent.engine.client import Engine, EngineRefused
from nodeagent.engine.images import (
    BuildContainer,
    builds_named,
    remove_image,
    run_build,
    stored_image,
)
from nodeagent.environments.errors import EnvironmentFailed
from nodeagent.environments.image_names import ImageNames
from nodeagent.environments.sandbox import Sandbox, Task
from tests.engines import required_engine
from tests.support.sandboxes import sandbox_here

PASSWD = b"root:x:0:0::/root:/bin/sh\n\xff:x:1:1:no text:/:/bin/sh"


@pytest.fixture
def engine() -> Engine:
    return required_engine()[0]


@pytest.fixture
def make(engine: Engine) -> Iterator[Callable[..., str]]:
    """Makes an image of entries, by name; its id."""
    made: list[str] = []

    def image(*entries: tuple[tarfile.TarInfo, bytes]) -> str:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for entry, content in entries:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        tag = f"nsml-test-{uuid.uuid4().hex[:12]}"
        engine.sdk.api.import_image_from_data(packed.getvalue(), repository=tag, tag="1")
        made.append(f"{tag}:1")
        found: str = engine.sdk.api.inspect_image(made[-1])["Id"]
        return found

    yield image
    for tag in made:
        remove_image(engine, tag)


def file(path: str, content: bytes) -> tuple[tarfile.TarInfo, bytes]:
    return tarfile.TarInfo(path), content


def link(path: str, to: str) -> tuple[tarfile.TarInfo, bytes]:
    entry = tarfile.TarInfo(path)
    entry.type, entry.linkname = tarfile.SYMTYPE, to
    return entry, b""


class Counted:
    """A sandbox, what it was asked to do, and something to do before."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.asked: list[Task] = []
        self.first: Callable[[Task], object] = lambda _: None
        self.folder = sandbox.folder
        self._sandbox = sandbox

    def ask(self, task: Task, **asker: Any) -> bytes:
        self.asked.append(task)
        self.first(task)
        return self._sandbox.ask(task, **asker)


@pytest.fixture
def sandbox() -> Counted:
    return Counted(sandbox_here())


@pytest.fixture
def names(engine: Engine, sandbox: Counted) -> Iterator[ImageNames]:
    mark = uuid.uuid4().hex[:12]
    prefix = f"nsml-build-{mark}-names-"
    yield ImageNames(engine, sandbox, prefix=prefix, mark=mark)  # type: ignore[arg-type]
    assert builds_named(engine, prefix) == []


def test_the_images_own_names_are_read_once_and_in_the_sandbox(
    make: Callable[..., str], names: ImageNames, sandbox: Counted
) -> None:
    image = make(file("etc/passwd", PASSWD), file("etc/group", b""))
    for _ in range(2):
        assert names.of(image, owner="kim") == {"/etc/passwd": PASSWD, "/etc/group": b""}
    (task,) = sandbox.asked
    assert sorted(task.files) == ["group.tar", "passwd.tar"]


def test_an_image_without_names_has_empty_ones(
    make: Callable[..., str], names: ImageNames, sandbox: Counted
) -> None:
    image = make(file("bin/sh", b""))
    assert names.of(image, owner="kim") == {"/etc/passwd": b"", "/etc/group": b""}
    assert sandbox.asked == []


def test_what_is_no_file_of_lines_stays_as_it_is(
    make: Callable[..., str], names: ImageNames, sandbox: Counted
) -> None:
    image = make(link("etc/passwd", "/proc/1/environ"), file("etc/group", b"a:x:1:\0none\n\0"))
    assert names.of(image, owner="kim") == {}
    image = make(file("etc/passwd", b"x" * (1 << 20)), file("etc/group", b"a:x:1:\n"))
    assert names.of(image, owner="kim") == {"/etc/group": b"a:x:1:\n"}
    assert [sorted(task.files) for task in sandbox.asked] == 2 * [["group.tar"]]


def test_no_container_is_started_of_an_image_in_which_the_engine_would_wait_for_good(
    make: Callable[..., str], engine: Engine, names: ImageNames
) -> None:
    pipe = tarfile.TarInfo("pipe")
    pipe.type = tarfile.FIFOTYPE
    image = make((pipe, b""), link("etc/passwd", "/a"), link("a", "../../pipe"))
    with pytest.raises(EnvironmentFailed, match="cannot be used: its /etc/passwd is no regular"):
        names.of(image, owner="kim")
    build = BuildContainer(
        name=f"nsml-build-{uuid.uuid4().hex[:12]}",
        mark="",
        argv=["true"],
        mounts=(),
        network="none",
        capabilities=(),
        memory_bytes=1 << 30,
        cpus=1.0,
    )
    with pytest.raises(EngineRefused, match="/etc/passwd is no regular file"):
        run_build(engine, build, stored_image(engine, image), say=print, look=int, keep=print)


def test_an_image_that_takes_long_keeps_nobody_from_others(
    make: Callable[..., str], names: ImageNames, sandbox: Counted
) -> None:
    slow, other = make(file("etc/passwd", b"slow")), make(file("etc/passwd", b"other"))
    begun, may_go_on = threading.Event(), threading.Event()

    def hold(task: Task) -> None:
        if b"slow" in task.files["passwd.tar"]:
            begun.set()
            may_go_on.wait(60)

    sandbox.first = hold
    thread = threading.Thread(target=lambda: names.of(slow, owner="kim"))
    thread.start()
    try:
        assert begun.wait(60)
        assert names.of(other, owner="lee")["/etc/passwd"] == b"other"
    finally:
        may_go_on.set()
        thread.join()
    assert names.of(slow, owner="lee")["/etc/passwd"] == b"slow"
    assert len(sandbox.asked) == 2


def test_what_a_reader_says_that_was_taken_over_is_not_believed(
    make: Callable[..., str], names: ImageNames, sandbox: Counted
) -> None:
    image = make(file("etc/passwd", PASSWD))
    for said in (b"", b"file\n", b"file\n\0file\n\0", b"what\n\0"):
        sandbox.ask = lambda _task, said=said, **_: said  # type: ignore[method-assign]
        assert "/etc/passwd" not in names.of(image, owner="kim")


def test_the_program_in_the_sandbox_takes_no_archive_for_one(tmp_path: Path) -> None:
    from nodeagent.environments.unpack_names import unpacked  # noqa: PLC0415

    broken = tmp_path / "a.tar"
    for content in (b"", b"no archive", b"\0" * 4096, b"x" * 4096):
        broken.write_bytes(content)
        assert unpacked(str(broken)) is None
