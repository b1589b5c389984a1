"""The backends of a control plane, and the check that they belong together.

A platform is a store, a history, an object store and keys. Each has its owner's mark: the store has the
platform's record, history and objects are marked with its id and a random part that is also in the
record. So a platform is never served with a part of another, with an empty part, or with a
copy that other control planes do not see.

A *shared* platform has etcd by URLs, PostgreSQL and objects that all see: any number of control
planes serve it. Every other platform belongs to one data folder:

    DATA/coordination   engine of the store: "embedded", "etcd" or the URLs of a cluster
    DATA/cluster        id of the platform
    DATA/cluster.new    the same until the first start is complete
    DATA/platform.key   of a shared platform: decrypts its keys, which are in the store
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, Protocol

from controlplane.access.files import write_private
from controlplane.access.platform_keys import (
    PlatformKey,
    PlatformKeys,
    WrongPlatformKey,
    first_keys,
    forget_files,
    read_platform_key,
)
from controlplane.access.vault import KEY_BYTES
from controlplane.core.ids import new_cluster_id
from controlplane.domain.cluster import Cluster
from controlplane.store.etcd_members import plain_or_tls
from controlplane.store.etcd_process import find_etcd
from controlplane.store.interface import Put, Transaction, absent, unchanged
from controlplane.store.open import endpoints_of
from controlplane.stored import etcd_codec
from nsml._version import VERSION
from nsml.common.urls import without_password

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from controlplane.history.sql.history import History
    from controlplane.objects.interface import ObjectStore
    from controlplane.store.interface import KeyValue, KeyValueStore
    from nsml.common.clock import Clock

_MARK_BYTES: Final = 8
_HOW_TO_SHARE: Final = (
    "a shared platform has etcd by URLs, history = postgresql://... and objects = s3://..., gs://..., "
    "az://... or file:///...: see docs/control-planes.md"
)


class StartRefused(Exception):
    """The control plane does not start; the message has the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Coordination:
    """Engine of the live records: "embedded", "etcd" (our child), or the URLs of a cluster."""

    kind: str

    @property
    def shown(self) -> str:
        """The name that users see."""
        return "embedded" if self.kind == "embedded" else "etcd"

    @property
    def is_inside(self) -> bool:
        """Whether the store is in the data folder."""
        return self.kind in {"embedded", "etcd"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSettings:
    """Configured backends of a control plane; `history` and `objects` are URLs, "" for its folder.

    Attributes:
        accept_empty: "history" or "objects": accept an empty one, or a copy, in place of the
            lost one.
    """

    coordination: Coordination
    history: str = ""
    objects: str = ""
    accept_empty: str = ""

    @property
    def is_shared(self) -> bool:
        """Whether any number of control planes may share these backends."""
        return bool(not self.coordination.is_inside and self.history and self.objects)

    @property
    def history_kind(self) -> str:
        """The value in the platform's record."""
        return "postgresql" if self.history else "sqlite"

    @property
    def objects_kind(self) -> str:
        """The value in the platform's record."""
        return "shared" if self.objects else "folder"


class ClaimedBackends(Protocol):
    """The backends to claim."""

    @property
    def store(self) -> KeyValueStore:
        """Has the platform's record."""
        ...

    @property
    def history(self) -> History:
        """Has ended sessions."""
        ...

    @property
    def objects(self) -> ObjectStore:
        """Has blobs."""
        ...

    @property
    def clock(self) -> Clock:
        """For the platform's creation time."""
        ...

    @property
    def random_bytes(self) -> Callable[[int], bytes]:
        """For ids, marks and keys."""
        ...


@dataclass(frozen=True, slots=True)
class Claimed:
    """The claimed platform.

    Attributes:
        key, keys: of a shared platform; None if its keys are in its folder.
    """

    cluster: Cluster
    key: PlatformKey | None = None
    keys: PlatformKeys | None = None


def choose_coordination(wanted: str, data: Path) -> Coordination:
    """Return the data folder's engine, or, for a fresh folder, the configured or available one.

    The URLs of a cluster may change: its record shows whether it is the same.

    Raises:
        StartRefused: the folder was made with another engine, or there is no such engine.
    """
    made_with = _read(data / "coordination")
    is_moved = bool(endpoints_of(made_with) and endpoints_of(wanted))
    if made_with and wanted not in ("auto", made_with) and not is_moved:
        raise StartRefused(
            f"{data} was made with coordination by {made_with!r}, not by {wanted!r}: the platform's "
            f"records are there; start without naming it, or use another data folder"
        )
    kind = wanted if is_moved else made_with or wanted
    if kind == "auto":
        kind = "etcd" if find_etcd() else "embedded"
    if kind not in ("embedded", "etcd") and not endpoints_of(kind):
        raise StartRefused(f"coordination {kind!r} is not embedded, etcd, auto or http(s) URLs")
    for endpoint in endpoints_of(kind):
        try:
            plain_or_tls(endpoint)
        except ValueError as error:
            raise StartRefused(str(error)) from error
    return Coordination(kind)


async def claim(
    on: ClaimedBackends, data: Path, standing: BackendSettings, key_file: Path
) -> Claimed:
    """Return the platform of these backends; the first start makes it, and changes nothing before.

    Raises:
        StartRefused: the backends do not belong together, or not to this data folder.
        StoreError, HistoryUnavailable, ObjectsUnavailable: a backend does not answer.
    """
    return await _Claim(on, data, standing, key_file).run()


class _Claim:
    """One start."""

    def __init__(
        self, on: ClaimedBackends, data: Path, standing: BackendSettings, key_file: Path
    ) -> None:
        self._on = on
        self._data = data
        self._standing = standing
        self._key_file = key_file

    async def run(self) -> Claimed:
        # Read the marks first: a new platform's record is written before its marks.
        marks = await self._on.history.mark(), await self._on.objects.mark()
        known = _read(self._data / "cluster")
        item = await self._on.store.get(etcd_codec.CLUSTER)
        if item is None:
            if known:
                raise StartRefused(self._not_here(known, ""))
            self._refuse_marked(*marks)
            item = await self._found()
        cluster = etcd_codec.decode_cluster(item.value)
        if known and cluster.id != known:
            raise StartRefused(self._not_here(known, cluster.id))
        if not known:
            self._check_newcomer(cluster)
        self._check_kinds(cluster)
        claimed = await self._with_keys(cluster)
        claimed = replace(claimed, cluster=await self._marked(cluster))
        self._keep(claimed)
        return claimed

    async def _found(self) -> KeyValue:
        """Make the platform, unless another start does so now; return the record in the store."""
        on, draft = self._on, self._draft() or new_cluster_id(self._on.random_bytes)
        standing = self._standing
        cluster = Cluster(
            id=draft,
            created_at=on.clock.time(),
            coordination=standing.coordination.shown,
            is_shared=standing.is_shared,
            history=standing.history_kind,
            objects=standing.objects_kind,
            written_by=VERSION,
        )
        puts = [Put(key=etcd_codec.CLUSTER, value=etcd_codec.encode_cluster(cluster))]
        is_key_made_now = False
        if standing.is_shared:
            key, is_key_made_now = self._key_made_if_need_be()
            keys = first_keys(self._data, on.clock, on.random_bytes)
            puts.append(Put(key=etcd_codec.PLATFORM_KEYS, value=key.seal(keys, draft)))
        # Written before the store has it: a crash in between must not leave a store without a folder.
        write_private(self._data / "cluster.new", draft.encode() + b"\n")
        await on.store.commit(
            Transaction(compares=(absent(etcd_codec.CLUSTER),), success=tuple(puts))
        )
        item = await on.store.get(etcd_codec.CLUSTER)
        if item is None:
            raise StartRefused("the store loses written data: is another program deleting it?")
        if is_key_made_now and etcd_codec.decode_cluster(item.value).id != draft:
            self._key_file.unlink()  # another start was quicker: this key is unused
        return item

    def _key_made_if_need_be(self) -> tuple[PlatformKey, bool]:
        key = self._read_key()
        if key is not None:
            return key, False
        made = self._on.random_bytes(KEY_BYTES)
        try:
            write_private(self._key_file, made.hex().encode() + b"\n")
        except OSError as error:
            raise StartRefused(
                f"cannot write the platform's key to {self._key_file}: {error.strerror}; make it "
                "there (openssl rand -hex 32, mode 0600), or name a folder of ours"
            ) from error
        return PlatformKey(made, self._on.random_bytes), True

    def _read_key(self) -> PlatformKey | None:
        try:
            return read_platform_key(self._key_file, self._on.random_bytes)
        except (OSError, ValueError) as error:
            raise StartRefused(str(error)) from error

    def _draft(self) -> str:
        return _read(self._data / "cluster.new")

    def _check_newcomer(self, cluster: Cluster) -> None:
        """Refuse a fresh data folder, except for a shared platform."""
        is_ours = self._standing.coordination.is_inside or self._draft() == cluster.id
        if is_ours or cluster.is_shared:
            return
        self._forget_draft()
        raise StartRefused(
            f"the etcd cluster at {self._standing.coordination.kind} belongs to another data folder, "
            f"that of the platform {cluster.id}: its history is there, and exactly one control plane "
            "writes it; start it from that folder, or name an etcd cluster that is free (for several "
            f"control planes, {_HOW_TO_SHARE})"
        )

    def _check_kinds(self, cluster: Cluster) -> None:
        """Refuse other kinds than the platform was made with: changing a setting moves nothing."""
        wanted = (self._standing.history_kind, self._standing.objects_kind)
        made = (cluster.history, cluster.objects)
        if wanted == made and (self._standing.is_shared == cluster.is_shared):
            return
        self._forget_draft()
        raise StartRefused(
            f"the platform {cluster.id} was made with {_kinds(*made)}, and the settings say "
            f"{_kinds(*wanted)}: its records would be missing; set history and objects as "
            "they were (nothing is moved by changing them: nsml admin backup, and nsml admin restore "
            "into a fresh platform with the other ones)"
        )

    def _refuse_marked(self, history: str, objects: str) -> None:
        """Refuse marked history or objects beside an empty store: it was emptied."""
        marks = (history, self._history_words()), (objects, self._objects_words())
        for mark, words in marks:
            if mark:
                raise StartRefused(
                    f"{words} belongs to the platform {_platform_of(mark)}, but the store has none: "
                    "it was emptied, or is another one; bring the right one back (or nsml admin "
                    "restore), or name a history and an object store that are free"
                )

    async def _with_keys(self, cluster: Cluster) -> Claimed:
        """Return the platform with its keys, decrypted with platform.key."""
        if not cluster.is_shared:
            return Claimed(cluster)
        key = self._read_key()
        if key is None:
            self._forget_draft()
            raise StartRefused(
                f"the keys of the platform {cluster.id} are sealed in its store, but {self._key_file} "
                "is not there: copy platform.key from another control plane's data folder to it (mode "
                "0600, of the user that runs this one), or say where a copy is and stays: "
                "nsml up --platform-key FILE (platform_key in a file of settings)"
            )
        item = await self._on.store.get(etcd_codec.PLATFORM_KEYS)
        if item is None:
            raise StartRefused(
                f"the store has the platform {cluster.id} without its keys: it is damaged; nsml admin "
                "restore brings them back"
            )
        try:
            return Claimed(cluster, key, key.open(item.value, cluster.id))
        except WrongPlatformKey as error:
            self._forget_draft()
            raise StartRefused(
                f"{self._key_file} is not the key of the platform {cluster.id}: its keys do not open "
                "with it; copy platform.key from another control plane's data folder"
            ) from error

    async def _marked(self, cluster: Cluster) -> Cluster:
        """Mark history and objects; return the platform's record with these marks."""
        on, accepted = self._on, self._standing.accept_empty
        # Check both before marking one: a refusal leaves no mark anywhere.
        self._check_mark(cluster, await on.history.mark(), "history")
        self._check_mark(cluster, await on.objects.mark(), "objects")
        while True:
            mark = f"{cluster.id}/{on.random_bytes(_MARK_BYTES).hex()}"
            is_new = not cluster.history_mark or accepted == "history"
            history = await on.history.mark(mark if is_new else "")
            is_new = not cluster.objects_mark or accepted == "objects"
            objects = await on.objects.mark(mark if is_new else "")
            self._check_mark(cluster, history, "history")
            self._check_mark(cluster, objects, "objects")
            now = replace(cluster, history_mark=history, objects_mark=objects)
            if now == cluster:
                return cluster
            item = await on.store.get(etcd_codec.CLUSTER)
            if item is None or etcd_codec.decode_cluster(item.value).id != cluster.id:
                raise StartRefused(self._not_here(cluster.id, ""))
            if etcd_codec.decode_cluster(item.value) == cluster:
                await on.store.commit(
                    Transaction(
                        compares=(unchanged(item.key, item.mod_revision),),
                        success=(Put(key=item.key, value=etcd_codec.encode_cluster(now)),),
                    )
                )
                item = await on.store.get(etcd_codec.CLUSTER) or item
            cluster = etcd_codec.decode_cluster(item.value)

    def _check_mark(
        self, cluster: Cluster, found: str, what: Literal["history", "objects"]
    ) -> None:
        if what == "history":
            recorded, words = cluster.history_mark, self._history_words()
        else:
            recorded, words = cluster.objects_mark, self._objects_words()
        if self._standing.accept_empty == what:
            recorded = ""
        lost = ""
        if found and _platform_of(found) != cluster.id:
            reason = f"belongs to another platform, {_platform_of(found)}"
        elif recorded and not found:
            reason = "has nothing of it: it is empty, not mounted, or another one"
            lost = (
                f"; if it is lost for good, with all records in it: "
                f"NSML_CONTROLPLANE_ACCEPT_EMPTY={what} in the environment of one start"
            )
        elif recorded and found != recorded:
            reason = (
                "is not the one that the platform has: a copy, or one that only this machine sees"
            )
        else:
            return
        self._forget_draft()
        raise StartRefused(
            f"this is the platform {cluster.id}, but {words} {reason}; name the one that its other "
            f"control planes use, or bring it back{lost}"
        )

    def _keep(self, claimed: Claimed) -> None:
        """Record the platform in the data folder."""
        data, cluster = self._data, claimed.cluster
        if claimed.keys is not None:
            forget_files(data, claimed.keys)
            write_private(data / "ca.pem", claimed.keys.authority[0])
        kind = self._standing.coordination.kind
        if _read(data / "coordination") != kind:
            write_private(data / "coordination", kind.encode() + b"\n")
        if not _read(data / "cluster"):
            write_private(data / "cluster", cluster.id.encode() + b"\n")
        self._forget_draft()

    def _forget_draft(self) -> None:
        (self._data / "cluster.new").unlink(missing_ok=True)

    def _not_here(self, known: str, found: str) -> str:
        return (
            f"{self._data} belongs to the platform {known}, but its store holds "
            f"{f'another one, {found}' if found else 'none'}: bring the right one back, or use "
            "another data folder"
        )

    def _history_words(self) -> str:
        history = self._standing.history
        return f"the history at {without_password(history)}" if history else "history.db"

    def _objects_words(self) -> str:
        objects = self._standing.objects
        return f"the object store at {without_password(objects)}" if objects else "objects/"


def _kinds(history: str, objects: str) -> str:
    of_history = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}.get(history, history)
    of_objects = {"folder": "objects in its data folder", "shared": "shared objects"}
    return f"{of_history} and {of_objects.get(objects, objects)}"


def _platform_of(mark: str) -> str:
    return mark.partition("/")[0]


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8").strip() if file.exists() else ""
