"""Where a data folder keeps its records, and that the two belong together.

What lives is in the store; history, objects and the authority are in the folder. A store with another
folder would be a platform without its past, and two control planes on one store would each write a
history of their own. So each belongs to the other for good:

    DATA/coordination    what keeps the records: "embedded", "etcd" or the URLs of a cluster
    DATA/cluster         id of the platform; the store has it too
    DATA/cluster.new     the same while the first start is not through
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from controlplane.access.files import write_private
from controlplane.plane import cluster_in, ensure_cluster, new_cluster_id
from controlplane.store.etcd_members import plain_or_tls
from controlplane.store.etcd_process import find_etcd
from controlplane.store.open import endpoints_of

if TYPE_CHECKING:
    from pathlib import Path

    from controlplane.plane import Surroundings


class StartRefused(Exception):
    """The control plane does not start; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Coordination:
    """What keeps the live records: "embedded", "etcd" (our child), or the URLs of a cluster."""

    kind: str

    @property
    def shown(self) -> str:
        """The word that users see."""
        return "embedded" if self.kind == "embedded" else "etcd"

    @property
    def is_inside(self) -> bool:
        """Whether the store lies in the data folder itself."""
        return self.kind in {"embedded", "etcd"}


def choose_coordination(wanted: str, data: Path) -> Coordination:
    """What the data folder was made with, or, for a fresh one, what is wanted or there.

    Raises:
        StartRefused: the folder was made with something else, or there is no such coordination.
    """
    made_with = _read(data / "coordination")
    if made_with and wanted not in ("auto", made_with):
        raise StartRefused(
            f"{data} was made with coordination by {made_with!r}, not by {wanted!r}: the platform's "
            f"records are there; start without naming it, or use another data folder"
        )
    kind = made_with or wanted
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


async def claim(on: Surroundings, data: Path, coordination: Coordination) -> str:
    """The id of the platform that lives here; the first start makes it.

    Raises:
        StartRefused: the store holds another platform, or does not hold this one any more.
        StoreError: the store does not answer.
    """
    known = _read(data / "cluster")
    if known:
        found = await cluster_in(on.store)
        if found != known:
            raise StartRefused(_not_here_any_more(data, known, found))
        return known
    draft = _read(data / "cluster.new") or new_cluster_id(on.random_bytes)
    # Written before the store has it: a crash in between must not leave a store without a folder.
    write_private(data / "cluster.new", draft.encode() + b"\n")
    found = await ensure_cluster(on, coordination.shown, draft)
    if found != draft and not coordination.is_inside:
        (data / "cluster.new").unlink()
        raise StartRefused(_belongs_to_another(coordination, found))
    write_private(data / "coordination", coordination.kind.encode() + b"\n")
    write_private(data / "cluster", found.encode() + b"\n")
    (data / "cluster.new").unlink()
    return found


def _not_here_any_more(data: Path, known: str, found: str) -> str:
    return (
        f"{data} belongs to the platform {known}, but its store holds "
        f"{f'another one, {found}' if found else 'none'}: bring the right one back, or use another "
        "data folder"
    )


def _belongs_to_another(coordination: Coordination, found: str) -> str:
    return (
        f"the etcd cluster at {coordination.kind} belongs to another data folder, that of the "
        f"platform {found}: its history is there, and exactly one control plane writes it; start it "
        "from that folder, or name an etcd cluster that is free"
    )


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8").strip() if file.exists() else ""
