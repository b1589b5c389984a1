"""One lock for all replicas and attempts of a session: on nodes of their own, while the index changes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.environments.virtualenvs import lock_of
from nodeagent.folders import ReplicaFolder
from nodeagent.replica.environment_locks import AgreeHook, LockHook
from nodeagent.replica.preparation_log import PreparationLog
from nodeagent.replica.preparation_steps import Draft, ImageHook, PreparationFailed, PythonHook
from nsml.client.errors import NotFound, Unsupported
from nsml.common.clock import in_own_thread, inline
from nsml.content.digests import digest_of
from nsml.packages.requirements import HERE
from nsml.v1 import agents_pb2 as pb
from nsml.v1 import environments_pb2, sessions_pb2
from tests.support.sandboxes import environments_in
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from google.protobuf.message import Message


def renew(index: Path, old: Path) -> None:
    """An index that has deleted a version."""
    old.unlink()
    make_wheel(index, "greeting", "TEXT = 'new'", version="2.0")


class Record:
    """What a control plane keeps of one session, without the platform around it."""

    def __init__(self) -> None:
        self.content = ""
        self.calls: list[str] = []
        self.is_old = False

    async def unary(self, method: str, request: Any, _answer: type[Message]) -> Any:
        name = method.rpartition("/")[2]
        self.calls.append(name)
        if name == "ProposeEnvironmentLock" and self.is_old:
            raise Unsupported("it does not know the call")
        if name == "GetEnvironmentLock" and not self.content:
            raise NotFound("no lock is kept")
        if name == "RecordEnvironmentLock":
            self.content = request.content
            return environments_pb2.RecordEnvironmentLockResponse()
        self.content = self.content or request.content
        lock = sessions_pb2.EnvironmentLock(
            digest=digest_of(self.content.encode()), content=self.content
        )
        if name == "GetEnvironmentLock":
            return environments_pb2.GetEnvironmentLockResponse(lock=lock)
        if request.content == self.content:
            lock.content = ""
        return environments_pb2.ProposeEnvironmentLockResponse(lock=lock)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def old(index: Path) -> Path:
    """The only wheel of the package, at first."""
    return make_wheel(index, "greeting", "TEXT = 'old'")


class Replica:
    """One replica on a node of its own."""

    def __init__(
        self,
        place: Path,
        record: Record,
        *,
        rank: int = 0,
        attempt: int = 1,
        lock: str = "",
        default: Sequence[str] = (),
    ) -> None:
        environments = environments_in(place, default=default)
        python = PythonHook(environments, in_own_thread, lambda **_: HERE)
        folder = ReplicaFolder(place / "replica")
        folder.create()
        (folder.app / "requirements.txt").write_text("greeting\n")
        self.log = folder
        assignment = pb.Assignment(
            replica=pb.ReplicaId(session_id="s" * 17, attempt=attempt, rank=rank),
            owner_id="kim",
            spec=sessions_pb2.SessionSpec(
                argv=["python"], replica_count=2, bundle_digest="d", environment_lock=lock
            ),
        )
        self.draft = Draft(assignment, folder, PreparationLog(folder, lambda: None))

        async def pause() -> None:
            raise AssertionError("nothing is tried again here")

        def rpc() -> Any:
            return record

        self.resolve = [LockHook(rpc, pause), python]
        self.agree = AgreeHook(rpc, pause, [python], inline)

    async def prepare(self) -> str:
        for hook in [*self.resolve, self.agree]:
            assert hook.applies(self.draft.assignment.spec)
            await hook.prepare(self.draft)
        assert self.draft.python is not None
        assert self.draft.installed == lock_of(self.draft.python.folder)
        return self.draft.installed.partition(" ")[0]

    @property
    def said(self) -> str:
        return self.log.output.read_text()


@pytest.mark.usefixtures("old")
async def test_replicas_and_later_attempts_have_what_the_first_resolved(
    tmp_path: Path, index: Path
) -> None:
    record = Record()
    first, slow = Replica(tmp_path / "0", record), Replica(tmp_path / "1", record, rank=1)
    assert await first.prepare() == "greeting==1.0"
    make_wheel(index, "greeting", "TEXT = 'new'", version="2.0")
    # it looked for a lock before there was one
    await slow.resolve[1].prepare(slow.draft)
    assert slow.draft.installed.startswith("greeting==2.0")
    await slow.agree.prepare(slow.draft)
    assert slow.draft.installed == first.draft.installed
    assert await Replica(tmp_path / "2", record, rank=1).prepare() == "greeting==1.0"
    again = Replica(tmp_path / "3", record, attempt=2)
    assert await again.prepare() == "greeting==1.0"
    assert "note" not in again.said + slow.said
    assert record.calls.count("RecordEnvironmentLock") == 0


async def test_what_cannot_be_installed_again_is_resolved_again_and_said(
    tmp_path: Path, index: Path, old: Path
) -> None:
    record = Record()
    await Replica(tmp_path / "0", record).prepare()
    renew(index, old)
    digest = digest_of(record.content.encode())
    with pytest.raises(PreparationFailed, match="--refresh resolves them again"):
        await Replica(tmp_path / "fork", record, lock=digest).prepare()
    other = Replica(tmp_path / "1", record, attempt=2, rank=1)
    assert await other.prepare() == "greeting==2.0"
    assert "cannot be installed here, and are resolved again" in other.said
    assert "other packages than on record: greeting 2.0 (1.0)" in other.said
    assert record.content.startswith("greeting==1.0"), "the first replica speaks for all"
    first = Replica(tmp_path / "2", record, attempt=2)
    assert await first.prepare() == "greeting==2.0"
    assert record.content.startswith("greeting==2.0"), "which a fork is to have"


@pytest.mark.usefixtures("old")
async def test_a_control_plane_that_knows_no_proposals_starts_sessions(tmp_path: Path) -> None:
    record = Record()
    record.is_old = True
    assert await Replica(tmp_path / "0", record).prepare() == "greeting==1.0"


@pytest.mark.parametrize(
    ("lines", "pinned", "has_default", "expected"),
    [
        ("", "", False, ("", False)),
        ("greeting\n", "", False, ("a lock", False)),
        ("", "its digest", False, ("a lock", True)),
        ("", "", True, ("a lock", True)),
        ("greeting\n", "", True, ("a lock", True)),
    ],
)
async def test_an_image_gets_default_packages_of_an_earlier_attempt_if_it_is_to_have_some(
    tmp_path: Path, lines: str, pinned: str, *, has_default: bool, expected: tuple[str, bool]
) -> None:
    given: list[tuple[str, bool]] = []
    has: list[bool] = []

    class Images:
        def resolve(self, *_: object) -> tuple[str, str]:
            return "lab/torch:2", ""

        def has_default_packages(self, *_: object) -> bool:
            return has_default

        def provide(
            self,
            *_: object,
            lock: str,
            keeps_whole_lock: bool,
            has_default_packages: bool,
            **__: object,
        ) -> str:
            given.append((lock, keeps_whole_lock))
            has.append(has_default_packages)
            return "sha256:i"

    class Nameless:
        def of(self, *_: object, **__: object) -> dict[str, bytes]:
            return {}

    class Answering:
        async def through(self, work: Callable[[], Awaitable[None]], **_: object) -> None:
            await work()

    folder = ReplicaFolder(tmp_path)
    folder.create()
    (folder.app / "requirements.txt").write_text(lines)
    spec = sessions_pb2.SessionSpec(bundle_digest="d", environment_lock=pinned)
    log = PreparationLog(folder, lambda: None)
    draft = Draft(pb.Assignment(owner_id="kim", spec=spec), folder, log, lock="a lock")
    hook: Any = ImageHook(Images(), Nameless(), in_own_thread, lambda **_: HERE, Answering())  # type: ignore[arg-type]
    await hook.prepare(draft)
    assert (given, has) == ([expected], [has_default])


@pytest.mark.parametrize(("keeps_all", "recorded"), [(False, 0), (True, 1)])
async def test_upon_an_image_the_part_of_the_lock_that_the_code_needs_is_enough(
    tmp_path: Path, *, keeps_all: bool, recorded: int
) -> None:
    record = Record()
    needed, beside = (f"{name}==1.0 --hash=sha256:{'a' * 64}\n" for name in ("kept", "default"))
    record.content = beside + needed
    replica = Replica(tmp_path, record, attempt=2)
    replica.draft.keeps_whole_lock, replica.draft.installed = keeps_all, needed
    replica.draft.is_lock_refused = True
    await replica.agree.prepare(replica.draft)
    assert record.calls.count("RecordEnvironmentLock") == recorded
    assert ("default absent (1.0)" in replica.said) is bool(recorded)


@pytest.mark.usefixtures("old")
async def test_default_packages_that_the_lock_of_a_container_lacks_are_named(
    tmp_path: Path, index: Path
) -> None:
    make_wheel(index, "beside")
    record = Record()
    await Replica(tmp_path / "0", record).prepare()
    later = Replica(tmp_path / "1", record, attempt=2, default=("beside", "greeting"))
    assert await later.prepare() == "greeting==1.0"
    assert "without beside of this node's default packages" in later.said
