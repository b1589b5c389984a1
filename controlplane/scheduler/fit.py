"""A replica's request, and whether a node can satisfy it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from controlplane.domain.models import is_model
from controlplane.domain.node_availability import owner_words
from controlplane.domain.values import (
    WHOLE_DEVICE,
    Isolation,
    Network,
    Node,
    Resources,
    Session,
    SessionSpec,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from controlplane.domain.values import DatasetVersion

DEFAULT_CPU_THOUSANDTHS = 2_000
"""Maximum default of cores."""

DEFAULT_MEMORY_BYTES = 24_000_000_000
"""Maximum default of memory."""

DEVICELESS_SHARES = 4
"""Default shares per node without devices."""


class Request(NamedTuple):
    """Request of each replica of a session: sessions with equal requests fit alike.

    A tuple, since every plan looks up every queued session by its request.
    """

    owner: str
    gpu_thousandths: int
    cpu_thousandths: int
    memory_bytes: int
    replica_count: int
    in_container: bool = False
    """Whether it needs an image, and so a node that runs containers."""
    gpu_model: str = ""
    """The model of its devices, as `domain.models` reads it; "": any."""
    pod: str = ""
    """The pod of its nodes; "": any or none."""
    network: Network | None = None
    """The required network of its nodes; None: any."""
    avoids: frozenset[str] = frozenset()
    """Excluded devices, by uuid, and nodes: they failed it."""
    paths: tuple[str, ...] = ()
    """Folders of its datasets in place, required of its nodes."""
    with_conda: bool = False
    """Whether its nodes must install conda packages."""
    data_bytes: int = 0
    """Disk space for its datasets on each node."""
    reads_hidden: bool = False
    """Whether it reads parts of another user's dataset that are hidden from its owner."""

    @property
    def whole_devices(self) -> int:
        """Whole devices per replica; 0 for a share of one and for none."""
        return self.gpu_thousandths // WHOLE_DEVICE

    @property
    def is_share(self) -> bool:
        """Whether it requests a part of one device."""
        return 0 < self.gpu_thousandths < WHOLE_DEVICE


def data_bytes(datasets: Iterable[DatasetVersion]) -> int:
    """Return their minimum disk space on a node: versions of one dataset may share all their files."""
    largest: dict[tuple[str, str], int] = {}
    for one in datasets:
        key = one.owner, one.name
        largest[key] = max(largest.get(key, 0), one.fetched_bytes)
    return sum(largest.values())


def request_of(owner: str, spec: SessionSpec, *, avoids: frozenset[str] = frozenset()) -> Request:
    """Build the request of a session of this owner."""
    wanted = spec.resources
    return Request(
        owner,
        wanted.gpu_thousandths,
        wanted.cpu_thousandths,
        wanted.memory_bytes,
        spec.replica_count,
        in_container=bool(spec.image or spec.dockerfile),
        gpu_model=spec.gpu_model,
        pod=spec.pod,
        network=Network.NONE if spec.is_confined else spec.network,
        avoids=avoids,
        paths=tuple(sorted({one.in_place for one in spec.datasets if one.in_place})),
        with_conda=spec.needs_conda and not spec.image and not spec.dockerfile,
        data_bytes=data_bytes(spec.datasets),
        reads_hidden=spec.is_sealed and any(one.owner != owner for one in spec.datasets),
    )


def asked_by(session: Session) -> Request:
    """Build the current request of a session, including what it avoids."""
    return request_of(session.owner, session.spec, avoids=session.avoids)


def resources_on(node: Node, request: Request) -> Resources:
    """Return one replica's resources on this node, defaults filled in.

    The default is the node's share for the requested GPUs: with 2 of 8 GPUs a quarter of its
    cores and memory, at most NSML's 2 cores and 24 GB. Without a GPU it is one GPU's share, or a
    quarter of a node without GPUs.
    """
    parts = len(node.devices) * WHOLE_DEVICE or DEVICELESS_SHARES * WHOLE_DEVICE
    held = request.gpu_thousandths or WHOLE_DEVICE
    cpu = request.cpu_thousandths or min(
        node.capacity.cpu_thousandths * held // parts, DEFAULT_CPU_THOUSANDTHS
    )
    memory = request.memory_bytes or min(
        node.capacity.memory_bytes * held // parts, DEFAULT_MEMORY_BYTES
    )
    return Resources(
        gpu_thousandths=request.gpu_thousandths, cpu_thousandths=cpu, memory_bytes=memory
    )


OWNERS_ONLY = "takes its owner's sessions only"
"""The refusal of a node that does not isolate users."""

IN_REACH = "keeps no data from its owner"
"""The refusal of such a node for data hidden from its owner."""

NO_CONTAINERS = "runs no containers"
NO_CONDA = "has no micromamba"
SMALL_DISK = "has a disk too small for its datasets"
NO_GANGS = "gives gangs no network"
NO_SUCH_GPU = "has no such GPU"
OTHER_POD = "is in another pod"
NO_HOST_NETWORK = "does not allow the host network"
NO_OWN_NETWORK = "gives sessions no network of their own"
NO_NONE_NETWORK = "cannot run sessions without a network"
NO_SUCH_PATH = "does not have its dataset in place"
AVOIDED = "failed it before"
_NOT_OFFERED: dict[Network | None, str] = {
    Network.HOST: NO_HOST_NETWORK,
    Network.OWN: NO_OWN_NETWORK,
    Network.NONE: NO_NONE_NETWORK,
}


def refusal(node: Node, request: Request) -> str:
    """Return why sessions of this kind are never placed there, whatever is free; "" if they are."""
    if (node.owner != request.owner or request.reads_hidden) and owner_words(node):
        return OWNERS_ONLY if node.owner != request.owner else IN_REACH
    if request.in_container and node.isolation is not Isolation.CONTAINER:
        return NO_CONTAINERS
    if words := _unprepared(node, request):
        return words
    if (request.replica_count > 1 or request.network) and (words := _unconnected(node, request)):
        return words
    if request.gpu_model and not any(
        is_model(one.model, request.gpu_model) for one in node.devices
    ):
        return NO_SUCH_GPU
    return _elsewhere(node, request) or (AVOIDED if node.name in request.avoids else "")


def _unprepared(node: Node, request: Request) -> str:
    """Return why the node cannot prepare its environment or data; "" if it can."""
    if request.with_conda and not node.builds_conda:
        return NO_CONDA
    return "" if node.holds_data(request.data_bytes) else SMALL_DISK


def _elsewhere(node: Node, request: Request) -> str:
    """Return why the node's pod or shared folders do not match; "" if they do."""
    if request.pod and node.pod != request.pod:
        return OTHER_POD
    return "" if all(map(node.shares, request.paths)) else NO_SUCH_PATH


def _unconnected(node: Node, request: Request) -> str:
    """Return why the node lacks its required network; "" if it does not."""
    given = node.networks_for(request.replica_count)
    if request.replica_count > 1 and not given:
        return NO_GANGS
    if request.network in (None, *given):
        return ""
    return _NOT_OFFERED[request.network]


MOST_ON_ONE_NODE = 960
"""Maximum replicas on one node, however small. Each needs a port of a bridge, the agent's or the container
engine's, and Linux has 1,023 per bridge: builds and prepared namespaces need some, too. Without a free port
a session fails to start, whichever sessions filled the bridge."""
MEMORY_FOR_EACH = 64 << 20
"""Bytes of a node's memory for each replica, to limit their number: a replica's supervisors (its shim, its keeper, the
engine's processes) use about 10 MiB, charged to no session, and could otherwise exceed the node's memory."""


def most_on(node: Node) -> int:
    """Return the maximum number of replicas on a node, however small."""
    return max(1, min(MOST_ON_ONE_NODE, node.capacity.memory_bytes // MEMORY_FOR_EACH))
