"""The steps before a replica's program starts: each can be run alone, and repeated.

resume  find the checkpoint of an attempt after the first, or of one with an initial checkpoint
port    in the node's network: check that the replica's port for others is free
data    fetch the datasets of the session to the node's cache, to be mounted at /data/NAME
stream  fetch the file lists of streamed datasets
code    make a working copy of the bundle in app/
lock    fetch the pinned packages: of a record, of an earlier attempt, of another replica
python  provide the environment that the code requires, without containers
image   provide the image for the session or its code, with containers
agree   propose the installed packages as the session's lock, or install that one, without containers
"""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from nodeagent.confinement import is_confined
from nodeagent.engine.client import EngineUnreachable
from nodeagent.engine.watch import EngineWatch
from nodeagent.environments.dockerfile_builds import Recipe
from nodeagent.environments.errors import EnvironmentFailed, ImageUnavailable
from nodeagent.environments.requirements import read_requirements
from nodeagent.environments.virtualenvs import Environments, lock_of, python_version_of
from nodeagent.folders import ReplicaFolder, ReplicaId, write_atomically
from nodeagent.link.outbox import replica_of
from nodeagent.machine.accounts import Accounts, AccountsError
from nodeagent.network.gang_network import (
    GangNetwork,
    gang_variables,
    launcher_variables,
    own_port,
)
from nodeagent.network.host_network import shares_ports
from nodeagent.replica.assignments import dataset_name, note_use, owner_of, stage_word
from nodeagent.replica.preparation_log import PreparationLog
from nodeagent.runtimes.interface import DeviceGrant, Mount, NodeRefused, PythonEnvironment
from nodeagent.safe_paths import open_folder
from nodeagent.storage.datasets import Trees
from nodeagent.storage.eviction import NoRoom
from nodeagent.storage.in_place import InPlaceFolders, NotHere
from nodeagent.storage.pod_trees import PodTrees
from nodeagent.storage.transfer import uninterrupted
from nodeagent.streaming.endpoints import Endpoints, Variables
from nsml.client.errors import ClientError, ContentDamaged
from nsml.common.clock import Offload
from nsml.common.units import ago, counted
from nsml.content.errors import ContentError
from nsml.content.in_place import changes_text
from nsml.packages.requirements import Requirements
from nsml.spec.folders import is_one_name
from nsml.spec.run_flags import LAUNCHER
from nsml.v1 import agents_pb2 as pb
from nsml.v1 import sessions_pb2 as sessions
from nsml.view.times import seconds_of

if TYPE_CHECKING:
    from nodeagent.engine.pulls import Login
    from nodeagent.environments.build_queue import Waits
    from nodeagent.environments.image_names import ImageNames
    from nodeagent.environments.images import Images
    from nsml.packages.requirements import Readers

T = TypeVar("T")

_COPIED_AT_ONCE = 1 << 30
_OLD_S = 24 * 3600.0
"""Older environments may have other packages than a build of now."""
_ANOTHER_IMAGE = (
    "; name another one with nsml run --image, or ask the node's administrator to replace it"
    " (image_aliases)"
)
_PYTHON = re.compile(r"python(3(\.\d+)?)?")


class PreparationFailed(Exception):
    """The replica cannot be started; the message is for its user."""

    def __init__(self, cause: sessions.Cause, message: str) -> None:
        super().__init__(message)
        self.cause = cause


@dataclass(slots=True)
class Draft:
    """Results of the hooks so far for one replica; `log` is the beginning of its output."""

    assignment: pb.Assignment
    folder: ReplicaFolder
    log: PreparationLog
    mounts: list[Mount] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    python: PythonEnvironment | None = None
    python_version: str = ""
    image: str | None = None
    image_name: str = ""
    """As in the request."""
    pinned_image: str = ""
    """With its digest."""
    names: Mapping[str, bytes] = field(default_factory=dict)
    """Its files with names of users and groups, by path."""
    waits: Callable[[str], None] = lambda _: None
    """Reports the reason for waiting on this node, from any thread; "": it continues."""
    resumes_from: str = ""
    """The checkpoint that the attempt resumes from; "": it begins anew."""
    logins: Mapping[str, Login] = field(default_factory=dict, repr=False)
    """The owner's logins at image registries, by registry."""
    lock: str = ""
    """The packages to install (nsml.packages.locks); "": those that the code requires."""
    keeps_whole_lock: bool = True
    """Whether to install all packages of the lock, not only those that its code needs."""
    is_lock_refused: bool = False
    """Whether this node could not install the lock of the session's other attempts or replicas."""
    installed: str = ""
    """The lock of the installed packages; "": there is none."""
    endpoint: Variables | None = None
    """Environment variables of its program for streamed datasets."""


class Hook(Protocol):
    """One step of the preparation."""

    def applies(self, spec: sessions.SessionSpec) -> bool:
        """Whether a session of that spec needs the step."""
        ...

    async def prepare(self, draft: Draft) -> None:
        """Run it; raises PreparationFailed. May be cancelled, and called again after that."""
        ...


class ResumeHook:
    """Finds the session's last saved checkpoint of earlier attempts, or its initial checkpoint.

    `newest` returns its name for a replica; "" without one.
    """

    def __init__(self, newest: Callable[[ReplicaId], Awaitable[str]]) -> None:
        self._newest = newest

    def applies(self, spec: sessions.SessionSpec) -> bool:
        """Applies to all: any may be a later attempt."""
        del spec
        return True

    async def prepare(self, draft: Draft) -> None:
        """Look it up after the first attempt, or with an initial checkpoint."""
        replica, spec = replica_of(draft.assignment.replica), draft.assignment.spec
        has_initial = spec.HasField("initial_checkpoint")
        if replica.attempt > 1 or has_initial:
            draft.resumes_from = await self._newest(replica)
        if has_initial and not draft.resumes_from:
            initial = spec.initial_checkpoint
            text = f"checkpoint {initial.name} of {initial.session_name} is not kept any more"
            raise PreparationFailed(sessions.CAUSE_DATA_FAILED, text)


def _damaged(what: str, name: str) -> PreparationFailed:
    """Not retryable: only a person can repair it."""
    return PreparationFailed(
        sessions.CAUSE_START_FAILED,
        f"{what} is damaged in the object store; nsml dataset push {name} PATH, of the same files, repairs it, and"
        " nsml doctor storage shows what is damaged",
    )


class DataHook:
    """Provides datasets from the node's cache."""

    def __init__(
        self,
        trees: Trees | PodTrees,
        accounts: Accounts | None,
        run: Offload,
        in_place: InPlaceFolders | None = None,
    ) -> None:
        self._trees = trees
        self._accounts = accounts
        self._run = run
        self._in_place = in_place

    def applies(self, spec: sessions.SessionSpec) -> bool:
        """Applies to sessions with a dataset."""
        return bool(spec.datasets)

    async def prepare(self, draft: Draft) -> None:
        """Fetch and mount every dataset that is not streamed."""
        for dataset in draft.assignment.spec.datasets:
            if not is_one_name(dataset_name(dataset)):
                text = f"{dataset.name!r} is no name of a dataset"
                raise PreparationFailed(sessions.CAUSE_DATA_FAILED, text)
            if dataset.streamed:
                continue
            try:
                tree = await self._trees.get(
                    dataset.digest,
                    owner_of(draft.assignment),
                    is_apart=is_confined(draft.assignment.spec),
                )
                if dataset.in_place:
                    draft.mounts.append(await self._place(dataset, tree, draft))
                    continue
                await self._admit(tree, draft)
            except (AccountsError, ClientError, ContentError, OSError) as error:
                what = f"dataset {dataset.name}@{dataset.version}"
                if isinstance(error, ContentDamaged):
                    raise _damaged(what, dataset.name) from error
                text = f"{what} could not be fetched: {error}"
                if isinstance(error, NoRoom):
                    text += f"; nsml run --stream {dataset.name} reads it without fetching it"
                raise PreparationFailed(sessions.CAUSE_DATA_FAILED, text) from error
            draft.mounts.append(Mount(source=tree, target=f"/data/{dataset_name(dataset)}"))

    async def _place(self, dataset: sessions.DatasetReference, tree: Path, draft: Draft) -> Mount:
        """Return the mount of a dataset in place. Raises PreparationFailed if it has changed, unless allowed."""
        what = f"dataset {dataset.name}@{dataset.version}, in place at {dataset.in_place},"
        if self._in_place is None:
            raise PreparationFailed(sessions.CAUSE_NODE_REFUSED, f"{what} is not for this node")
        try:
            found = await self._in_place.look(dataset.in_place, tree)
        except NotHere as error:
            text = f"{what} cannot be mounted: {error}"
            raise PreparationFailed(sessions.CAUSE_NODE_REFUSED, text) from error
        if found.count:
            text = f"{what} has changed: {changes_text(found)}"
            if not draft.assignment.spec.allow_changed_data:
                text += (
                    "; nsml dataset add --in-place makes a version of what is there, and"
                    " nsml run --allow-changed starts all the same"
                )
                raise PreparationFailed(sessions.CAUSE_START_FAILED, text)
            await self._run(partial(draft.log.note, f"note: {text}"))
        return Mount(source=Path(dataset.in_place), target=f"/data/{dataset_name(dataset)}")

    async def _admit(self, tree: Path, draft: Draft) -> None:
        """Let this replica read a restricted tree."""
        if self._accounts is not None:
            group = await self._run(partial(self._accounts.admit, tree))
            if group is not None:
                draft.groups.append(group)


class StreamHook:
    """Fetches the file lists of streamed datasets, and sets their environment variables."""

    def __init__(self, endpoints: Endpoints, run: Offload) -> None:
        self._endpoints = endpoints
        self._run = run

    def applies(self, spec: sessions.SessionSpec) -> bool:
        """Applies to sessions with a streamed dataset."""
        return any(dataset.streamed for dataset in spec.datasets)

    async def prepare(self, draft: Draft) -> None:
        """Fetch the lists of files."""
        assignment = draft.assignment
        try:
            await self._endpoints.prepare(assignment.spec)
        except (ClientError, ContentError, OSError) as error:
            if isinstance(error, ContentDamaged):
                raise _damaged("a streamed dataset", "NAME") from error
            text = f"a streamed dataset cannot be read: {error}"
            raise PreparationFailed(sessions.CAUSE_DATA_FAILED, text) from error
        draft.endpoint = self._endpoints.variables(replica_of(assignment.replica), assignment.spec)
        if draft.endpoint.note:
            await self._run(partial(draft.log.note, f"note: {draft.endpoint.note}"))


class CodeHook:
    """Makes a working copy of the bundle."""

    def __init__(self, trees: Trees, run: Offload) -> None:
        self._trees = trees
        self._run = run

    def applies(self, spec: sessions.SessionSpec) -> bool:
        """Applies to sessions with a bundle."""
        return bool(spec.bundle_digest)

    async def prepare(self, draft: Draft) -> None:
        """Fill app/ with files that the program may change."""
        digest, owner = draft.assignment.spec.bundle_digest, owner_of(draft.assignment)
        try:
            tree = await self._trees.get(digest, owner)
            async with self._trees.room_for_copy(digest, owner) as room:
                copy = partial(_copy, tree, draft.folder, room.look)
                await uninterrupted(self._run, copy, cancel=room.cancel)
        except (ClientError, ContentError, OSError) as error:
            if isinstance(error, ContentDamaged):
                text = "the code is damaged in the object store; nsml run of the same folder repairs it"
                raise PreparationFailed(sessions.CAUSE_START_FAILED, text) from error
            text = f"the code could not be fetched: {error}"
            raise PreparationFailed(sessions.CAUSE_DATA_FAILED, text) from error


class MakeReaders(Protocol):
    """Creates the readers of a user's files; see Setups.reader."""

    def __call__(self, *, owner: str, waits: Waits, cancelled: threading.Event | None) -> Readers:
        """Return the readers."""
        ...


class PythonHook:
    """Provides the Python environment that the code requires, for programs without an image.

    An entry always has one; a plain command line if it calls Python or comes with requirements.
    """

    def __init__(
        self,
        environments: Environments,
        run: Offload,
        reader: MakeReaders,
    ) -> None:
        self._environments = environments
        self._run = run
        self._reader = reader

    def applies(self, spec: sessions.SessionSpec) -> bool:
        """Applies to sessions with an entry, with code, or with Python on the command line."""
        return _calls_python(spec) or bool(spec.bundle_digest)

    async def prepare(self, draft: Draft) -> None:
        """Provide the environment, if one is needed."""
        try:
            wanted = await _required(self._run, self._reader, draft)
            check_python(wanted)
            if draft.python is None:
                for note in (*wanted.notes, *not_honoured(wanted)):
                    await self._run(partial(draft.log.note, f"note: {note}"))
            if wanted.lines or wanted.conda or draft.lock or _calls_python(draft.assignment.spec):
                provide = partial(self._environments.provide, wanted)
                draft.python = await _provided(self._run, provide, draft, "environment", wanted)
                draft.installed = await self._run(partial(lock_of, draft.python.folder))
                version_of = partial(python_version_of, draft.python.folder)
                draft.python_version = await self._run(version_of)
                if draft.lock and (without := self._environments.lacking_defaults(draft.lock)):
                    await self._run(partial(draft.log.note, _without_defaults(without)))
        except (AccountsError, EnvironmentFailed, OSError) as error:
            raise _not_made(draft, error) from error


def _without_defaults(names: Sequence[str]) -> str:
    """The lock may come from a replica in a container, whose image has these packages."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (
        f"note: without {', '.join(names[:3])}{more} of this node's default packages: the lock of the"
        " session does not have them; name in requirements.txt what the code needs"
    )


class ImageHook:
    """Provides the image that the session or its code requires, for programs in containers."""

    def __init__(
        self,
        images: Images,
        names: ImageNames,
        run: Offload,
        reader: MakeReaders,
        engine: EngineWatch,
    ) -> None:
        self._images = images
        self._names = names
        self._run = run
        self._reader = reader
        self._engine = engine

    def applies(self, spec: sessions.SessionSpec) -> bool:
        """Applies to all: a container is made of an image."""
        del spec
        return True

    async def prepare(self, draft: Draft) -> None:
        """Provide the image, with the requirements of the code on top."""
        try:
            if recipe := draft.assignment.spec.dockerfile:
                await self._run(partial(_note_source, draft, recipe))
                wanted, provide = self._built(draft)
            else:
                wanted, provide = await self._named_by(draft)

            async def made() -> None:
                draft.image = await _provided(self._run, provide, draft, "image", wanted)
                draft.pinned_image = draft.pinned_image or draft.image
                draft.names = await self._named(draft, draft.image)

            waits = partial(_waits, draft)
            await self._engine.through(made, waits=lambda why: self._run(partial(waits, why)))
        except EngineUnreachable as error:
            raise PreparationFailed(sessions.CAUSE_NODE_REFUSED, str(error)) from error
        except (EnvironmentFailed, OSError) as error:
            raise _not_made(draft, error) from error

    async def _named_by(self, draft: Draft) -> tuple[Requirements, Callable[..., str]]:
        """Return the requirements of the code, and a function that builds them on the image of the session or its code."""
        wanted = await _required(self._run, self._reader, draft, in_container=True)
        asked = draft.assignment.spec.image
        reference, note = self._images.resolve(asked, wanted.image)
        draft.image_name = asked or wanted.image or reference
        has_default = self._images.has_default_packages(asked, wanted.image)
        is_pinned = bool(draft.assignment.spec.environment_lock)
        draft.keeps_whole_lock = (is_pinned or has_default) and not wanted.are_hashed
        if not wanted.lines and not draft.keeps_whole_lock:
            # a lock of another node's default packages: here the image has them
            draft.lock = ""
        if draft.image is None:
            for one in (*wanted.notes, *([note] if note else [])):
                await self._run(partial(draft.log.note, f"note: {one}"))
        provide = partial(
            self._images.provide,
            reference,
            wanted,
            keeps_whole_lock=draft.keeps_whole_lock,
            logins=draft.logins,
            pinned=partial(setattr, draft, "pinned_image"),
            installed=partial(setattr, draft, "installed"),
            has_default_packages=has_default,
        )
        return wanted, provide

    def _built(self, draft: Draft) -> tuple[Requirements, Callable[..., str]]:
        """Return no requirements, since the Dockerfile installs them, and a function that builds its image."""
        spec = draft.assignment.spec
        recipe = Recipe(
            folder=draft.folder.app, path=spec.dockerfile, arguments=dict(spec.build_arguments)
        )
        draft.image_name = spec.dockerfile
        return Requirements(), partial(self._images.provide_built, recipe, logins=draft.logins)

    async def _named(self, draft: Draft, image: str) -> Mapping[str, bytes]:
        """Return its files with names of users and groups; aborted on cancellation."""
        cancelled = threading.Event()
        read = partial(
            self._names.of,
            image,
            owner=owner_of(draft.assignment),
            waits=partial(_waits, draft),
            cancelled=cancelled,
        )
        return await uninterrupted(self._run, read, cancel=cancelled.set)


def _not_made(draft: Draft, error: Exception) -> PreparationFailed:
    text = f"the environment could not be made: {error}"
    spec = draft.assignment.spec
    if isinstance(error, ImageUnavailable) and not (spec.image or spec.dockerfile):
        text += _ANOTHER_IMAGE
    if spec.environment_lock:
        text += "; its packages are pinned to another session's lock; --refresh resolves them again"
    return PreparationFailed(cause_of(error, sessions.CAUSE_ENVIRONMENT_FAILED), text)


def cause_of(error: Exception, otherwise: sessions.Cause) -> sessions.Cause:
    """Return why a replica was not started: a full disk is its node's fault, and a later attempt may find room.

    So is a refusal of the node: the session is placed on another one.
    """
    if isinstance(error, AccountsError | NodeRefused):
        return sessions.CAUSE_NODE_REFUSED
    has_no_room = isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}
    return sessions.CAUSE_DATA_FAILED if has_no_room else otherwise


async def _required(
    run: Offload, reader: MakeReaders, draft: Draft, *, in_container: bool = False
) -> Requirements:
    """Return the requirements of a draft's code; aborted on cancellation."""
    cancelled = threading.Event()
    readers = reader(
        owner=owner_of(draft.assignment), waits=partial(_waits, draft), cancelled=cancelled
    )
    spec = draft.assignment.spec
    read = partial(
        read_requirements,
        draft.folder.app,
        entry="" if spec.argv else spec.entry,
        may_build=in_container,
        has_image=in_container,
        readers=readers,
    )
    found = await uninterrupted(run, read, cancel=cancelled.set)
    if found.source:
        await run(partial(_note_source, draft, found.source))
    return found


def _note_source(draft: Draft, source: str) -> None:
    """Note which file lists its packages, for the error if one is missing; see `exit_of`."""
    write_atomically(draft.folder.requirements, source.encode())


async def _provided(
    run: Offload, provide: Callable[..., T], draft: Draft, kind: str, wanted: Requirements
) -> T:
    """Return the result of `provide`: logged, noted as used, aborted on cancellation.

    With the draft's lock; if it cannot be installed here and is only that of another attempt or replica of the session,
    with other packages and a note.
    """
    provided = partial(_provided_once, run, provide, draft, kind, wanted)
    try:
        return await provided()
    except EnvironmentFailed as error:
        if not draft.lock or draft.assignment.spec.environment_lock:
            raise
        note = f"note: the packages on record cannot be installed here, and are resolved again: {error}"
    await run(partial(draft.log.note, note))
    draft.lock, draft.is_lock_refused = "", True
    return await provided()


async def _provided_once(
    run: Offload, provide: Callable[..., T], draft: Draft, kind: str, wanted: Requirements
) -> T:
    cancelled = threading.Event()
    return await uninterrupted(
        run,
        lambda: provide(
            draft.log.write,
            cancelled,
            owner=owner_of(draft.assignment),
            lock=draft.lock,
            waits=partial(_waits, draft),
            use=lambda key: note_use(draft.folder, f"{kind} {key}"),
            built_after=seconds_of(draft.assignment.built_after),
            built=partial(_tell_age, draft, wanted),
        ),
        cancel=cancelled.set,
    )


def check_python(wanted: Requirements) -> None:
    """Raises EnvironmentFailed if the code requires another Python than this node's."""
    here = platform.python_version()
    if wanted.refuses_python(here):
        raise EnvironmentFailed(
            f"{wanted.source} requires Python {wanted.python}, and this node has {here}: an image has the"
            " Python that it needs, on a node with containers (nsml run --image)"
        )


def _tell_age(draft: Draft, wanted: Requirements, built_at: float) -> None:
    """Log its age, if a build of now could have other packages."""
    age_s = time.time() - built_at
    if built_at and age_s > _OLD_S and not draft.lock and not wanted.are_pinned:
        draft.log.note(
            f"environment: built {ago(age_s)} from unpinned requirements; nsml run --refresh rebuilds it"
        )


def _waits(draft: Draft, reason: str) -> None:
    """Report why a draft waits, in its log and in lists; "": it continues."""
    draft.waits(reason)
    if reason:
        draft.log.note(reason)


def not_honoured(wanted: Requirements) -> list[str]:
    """Return what a node without containers ignores, one sentence each."""
    notes = []
    if wanted.packages:
        count = counted(len(wanted.packages), "system package")
        notes.append(
            f"nsml_package.txt: not installed ({count}): this node runs programs without containers"
        )
    if wanted.image is not None:
        notes.append(
            f"image {wanted.image} is not used: this node runs programs without containers"
        )
    return notes


class PortHook:
    """Checks that the replica's port of the node is free.

    `earlier` returns the replicas of this node that began before the given one and have not ended:
    their ports are taken even before their programs listen.
    """

    def __init__(
        self,
        earlier: Callable[[ReplicaId], Iterable[ReplicaId]],
        is_free: Callable[[int], bool],
        run: Offload,
    ) -> None:
        self._earlier = earlier
        self._is_free = is_free
        self._run = run

    def applies(self, spec: sessions.SessionSpec) -> bool:
        """Applies to gangs, whose replicas would meet nobody, or a stranger, and to sessions in the node's network."""
        return shares_ports(spec)

    async def prepare(self, draft: Draft) -> None:
        """Check it; a further attempt has other ports."""
        replica = replica_of(draft.assignment.replica)
        port = own_port(replica)
        holder = next((one for one in self._earlier(replica) if own_port(one) == port), None)
        if holder is not None or not await self._run(partial(self._is_free, port)):
            whose = "another program" if holder is None else "another session"
            text = f"port {port} of the node, at which it is to be reached, is taken by {whose}"
            raise PreparationFailed(sessions.CAUSE_PORT_TAKEN, text)


def _calls_python(spec: sessions.SessionSpec) -> bool:
    return not spec.argv or _PYTHON.fullmatch(spec.argv[0]) is not None


def argv_of(spec: sessions.SessionSpec) -> list[str]:
    """The command line of a session's program."""
    if spec.argv:
        return list(spec.argv)
    entry = spec.entry or "main.py"
    if spec.launcher:
        launcher = LAUNCHER.word(spec, "launcher")
        return ["python", "-u", "-m", "nsml._launch", launcher, entry, *spec.args]
    # Python would read -x.py as options.
    return ["python", "-u", f"./{entry}" if entry.startswith("-") else entry, *spec.args]


def environment_of(
    assignment: pb.Assignment,
    replica: ReplicaId,
    grants: Sequence[DeviceGrant],
    network: GangNetwork | None,
) -> dict[str, str]:
    """Return the variables that identify a program; the runtime adds folders and devices.

    `network`: the network shared with other replicas; None: its own.
    """
    hosts = list(assignment.hosts)
    if network is not None:
        hosts = network.hosts(replica, hosts)
    hosts = hosts or ["127.0.0.1"]
    world = max(len(hosts), assignment.spec.replica_count, 1)
    names = [dataset_name(one) for one in assignment.spec.datasets if not one.streamed]
    gang = gang_variables(replica, hosts, world, len(grants))
    env = {
        **launcher_variables(gang, world, len(grants)),
        **(network.environment if network else {}),
        **assignment.spec.environment,
    }
    env.update(
        {
            "NSML_SESSION_NAME": assignment.session_name,
            "NSML_GPU_NUM": str(len(grants)),
            "NSML_CPU_NUM": _cores_text(assignment.resources.cpu_thousandths),
            "NSML_MEMORY_BYTES": str(assignment.resources.memory_bytes),
            "NSML_DATASET_NAME": os.pathsep.join(names),
            "NSML_DATASET_DIGEST": os.pathsep.join(one.digest for one in assignment.spec.datasets),
            **gang,
        }
    )
    if assignment.spec.stage:
        env["NSML_STAGE"] = stage_word(assignment.spec)
    if assignment.knobs:
        env["NSML_KNOBS"] = json.dumps([_knob_of(one) for one in assignment.knobs])
    simulated = [grant.uuid for grant in grants if grant.simulated]
    if simulated:
        env["NSML_DEVICES"] = ",".join(simulated)
        env["NSML_SIMULATED"] = "1"
    return env


def _cores_text(thousandths: int) -> str:
    return f"{thousandths / 1000:g}"


def _knob_of(value: sessions.KnobValue) -> dict[str, Any]:
    """Return a value of a knob as `nsml/_knobs.py` reads it."""
    at = value.at if value.HasField("at") else None
    return {
        "name": value.name,
        "value": json.loads(value.value),
        "counter": value.counter,
        "at": at,
    }


def _copy(tree: Path, folder: ReplicaFolder, look: Callable[[], object]) -> None:
    """Copy the cached tree into app/, writable; files of an earlier attempt are replaced.

    `look` is called for each file, and may raise to abort. No link in app/ is followed: that attempt may have started the program before its agent died.
    """
    folder.create()
    for base, _, files in os.walk(tree):
        with open_folder(folder.app, Path(base).relative_to(tree).parts, create=True) as target:
            for name in files:
                look()
                _copy_file(f"{base}/{name}", name, target)


def _copy_file(source: str, name: str, target: int) -> None:
    read = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        copy = _new_file(name, target)
        try:
            while os.sendfile(copy, read, None, _COPIED_AT_ONCE):
                pass
            os.fchmod(copy, 0o755 if os.fstat(read).st_mode & 0o100 else 0o644)
        finally:
            os.close(copy)
    finally:
        os.close(read)


def _new_file(name: str, folder: int) -> int:
    """Create a file, replacing any other of that name; return its descriptor."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, 0o600, dir_fd=folder)
    except FileExistsError:
        os.unlink(name, dir_fd=folder)
        return os.open(name, flags, 0o600, dir_fd=folder)
