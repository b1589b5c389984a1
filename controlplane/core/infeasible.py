"""Refusal of a session that can never be placed: the reason, and the nearest possible requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from controlplane.domain.errors import CannotEverFit, InvalidRequest
from controlplane.domain.values import WHOLE_DEVICE, Isolation, Network
from controlplane.scheduler import keep_to_owners, runs_nowhere
from controlplane.scheduler.explain import (
    describe,
    lacking_conda,
    lacking_paths,
    never_words,
    no_such_network,
)
from nsml.common.shell import shell_word
from nsml.common.units import exact_size_text, size_text, thousandths
from nsml.spec.gpu_models import model_word
from nsml.spec.request_limits import MOST_REPLICAS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from controlplane.domain.errors import NsmlError
    from controlplane.domain.values import Node
    from controlplane.scheduler import MaxCapacity, Request

MOST_DEVICES: Final = 1_000
"""Maximum devices of a session: its record lists them all."""

_KEYS: Final = {
    "-g": "gpus",
    "--nodes": "nodes",
    "-c": "cpus",
    "--memory": "memory",
    "--gpu-model": "gpu-model",
    "--pod": "pod",
    "--network": "network",
    "--priority": "priority",
}
"""Flags of `nsml run`, and their names in `--what-if`."""

_IN_SETTINGS: Final = " in agent.site.toml of a node    its administrator"
_NETWORKS: Final = {
    (False, Network.HOST): ("host_network is never", f'host_network = "on-request"{_IN_SETTINGS}'),
    (False, Network.OWN): (
        "sessions share the node's network",
        "nsml doctor node    on the node: what is missing for networks of sessions",
    ),
    (False, Network.NONE): (
        "sessions see the machine's files and sockets",
        "nsml doctor node    on the node: what is missing for isolation namespace or container",
    ),
    (True, Network.HOST): ("gang_network is an overlay", f'gang_network = "host"{_IN_SETTINGS}'),
    (True, Network.OWN): ("gang_network is host", f'gang_network = "overlay:NAME"{_IN_SETTINGS}'),
    (True, Network.NONE): ("the replicas of a gang meet by the network", ""),
}
"""By whether it is a gang, and the requested network: why nodes refuse it, and the remedy."""
_NEVER: Final = "this can never be placed"
_MOST_NAMED: Final = 3
_LOOK: Final = "nsml node ls"


class Alternatives:
    """Alternatives to a refused request: all are possible on these nodes, and in the project.

    Args:
        extent: of the nodes.
        within: reduces a request to what the project allows at once.
        session: for changes of a queued session: its name, for `--what-if`.
        own: that session's request.
    """

    def __init__(
        self,
        extent: MaxCapacity,
        within: Callable[[Request], Request] = lambda request: request,
        *,
        session: str = "",
        own: Request | None = None,
    ) -> None:
        self.extent = extent
        self._within = within
        self._session = session
        self._own = own

    def words(self, request: Request) -> str:
        """Return commands for the alternatives, one per line, nearest first."""
        start = self._within(_within(request))
        possible = [start]
        if self.extent.nodes and not self.extent.fits(start):
            possible = [self._within(one) for one in self.extent.nearest(start)]
            possible = [one for one in possible if self.extent.fits(one)]
        told = (self._instead(request, one) for one in dict.fromkeys(possible))
        return "\n".join(filter(None, told))

    def flag(self, flag: str, value: str) -> str:
        """Return the command with another value of one flag of `nsml run`."""
        if self._session:
            return self._supposing({flag: value})
        return f"nsml run {flag} {shell_word(value)} ..."

    def _instead(self, request: Request, possible: Request) -> str:
        """Return the changed flags as a command; "" if nothing changes."""
        before = _flags(self._own or request)
        changed = {flag: text for flag, text in _flags(possible).items() if text != before[flag]}
        if self._session:
            return self._supposing(changed)
        given = [f"{flag} {shell_word(text)}" for flag, text in changed.items() if text]
        left_out = [flag for flag, text in changed.items() if not text]
        command = " ".join(["nsml run", *given, "..."])
        return f"{command}    without {' and '.join(left_out)}" if left_out else command

    def _supposing(self, changed: Mapping[str, str]) -> str:
        if not changed or not changed.keys() <= _KEYS.keys():
            return ""  # unchanged, or not supported by --what-if
        change = ",".join(f"{_KEYS[flag]}={text}" for flag, text in changed.items())
        return f"nsml status --explain {self._session} --what-if {shell_word(change)}"


def refusal_of(nearest: Alternatives, request: Request, image: str = "") -> NsmlError | None:
    """Return why it could not be placed even if nothing else ran; None if it could, or no node is known.

    Silent and drained nodes and withheld devices count: they may return.
    """
    if words := _beyond(request):
        return InvalidRequest(words, attempt=nearest.words(request))
    extent = nearest.extent
    if extent.fits(request) or not extent.nodes:
        return None
    return _never(nearest, request, image)


def _never(nearest: Alternatives, request: Request, image: str) -> NsmlError:
    extent = nearest.extent
    if found := _lacking_everywhere(nearest, request, image):
        return found
    if shut := extent.without_network(request):
        return _no_network(nearest, shut, request)
    if words := no_such_network(extent, request):
        return _other_network(nearest, words, request)
    return CannotEverFit(
        f"{_NEVER}: it needs {describe(request)}",
        why=never_words(extent, request),
        attempt=_lines(nearest.words(request), _other_ways(extent.nodes)),
    )


def _lacking_everywhere(nearest: Alternatives, request: Request, image: str) -> NsmlError | None:
    """Return the refusal if all nodes lack the same thing, whatever their size."""
    nodes = nearest.extent.nodes
    if owners := keep_to_owners(nodes, request):
        return CannotEverFit(
            f"{_NEVER}: no node runs sessions of {request.owner}",
            why=owners,
            attempt="its administrator starts that agent as root, or on a machine with Docker\n"
            f"{_LOOK}",
        )
    if runs_nowhere(nodes, request):
        return CannotEverFit(
            f"{_NEVER}: {f'image {image}' if image else 'its image'} needs a node that runs containers",
            why="no node runs containers: programs run in the nodes' own environments",
            attempt=_lines(nearest.words(request), _LOOK),
        )
    if words := lacking_conda(nodes, request):
        return CannotEverFit(
            f"{_NEVER}: it needs a node that installs packages of conda",
            why=words,
            attempt=_lines(
                "list the packages in requirements.txt",
                _with_image(nearest, request),
                "echo environment.yml >> .nsmlignore    and run without them",
            ),
        )
    if words := _lacking_disk(nodes, request):
        return CannotEverFit(
            f"{_NEVER}: its datasets are larger than every node's disk",
            why=words,
            attempt="nsml run --stream NAME ...    reads a dataset as it goes, and keeps what fits",
        )
    if paths := lacking_paths(nodes, request):
        return CannotEverFit(
            f"{_NEVER}: no node has {paths}",
            why="a dataset is in place there, and the agent of a node with that folder names it in shared_roots",
            attempt=f"shared_roots = [FOLDER]{_IN_SETTINGS}\n{_LOOK}",
        )
    return None


def _lacking_disk(nodes: Sequence[Node], request: Request) -> str:
    """Say how large its datasets are, and the maximum of a node's disk, if none can hold them; else ""."""
    if not nodes or any(one.holds_data(request.data_bytes) for one in nodes):
        return ""
    most = max(one.data_bytes for one in nodes)
    return f"they take {size_text(request.data_bytes)}, and no node's disk has more than {size_text(most)} for datasets"


def _with_image(nearest: Alternatives, request: Request) -> str:
    """Return the command with an image in place of conda; "" if no node could run that either."""
    in_image = request._replace(in_container=True, with_conda=False)
    return "nsml run --image NAME ..." if nearest.extent.fits(in_image) else ""


def _beyond(request: Request) -> str:
    """Say which general limit of sessions it exceeds; "" if none."""
    replicas = request.replica_count
    if not 1 <= replicas <= MOST_REPLICAS:
        return f"{replicas} replicas: a gang has 1 to {MOST_REPLICAS}"
    devices = replicas * -(-request.gpu_thousandths // WHOLE_DEVICE)
    return f"{devices} GPUs: a session has at most {MOST_DEVICES}" if devices > MOST_DEVICES else ""


def _within(request: Request) -> Request:
    """Reduce a request to the general limits of sessions."""
    gpu = min(request.gpu_thousandths, MOST_DEVICES * WHOLE_DEVICE)
    most = MOST_DEVICES // max(-(-gpu // WHOLE_DEVICE), 1)
    return request._replace(
        gpu_thousandths=gpu, replica_count=max(1, min(request.replica_count, MOST_REPLICAS, most))
    )


def _lines(*lines: str) -> str:
    return "\n".join(filter(None, lines))


def _flags(request: Request) -> dict[str, str]:
    """Return the flags of `nsml run` for a request; "" for an omitted flag."""
    cpu, memory = request.cpu_thousandths, request.memory_bytes
    return {
        "-g": thousandths(request.gpu_thousandths),
        "--nodes": str(request.replica_count),
        "-c": thousandths(cpu) if cpu else "",
        "--memory": exact_size_text(memory) if memory else "",
        "--gpu-model": model_word(request.gpu_model),
        "--pod": request.pod,
        "--network": request.network or "",
        "--image": "NAME" if request.in_container else "",
    }


def _named(nodes: Sequence[Node]) -> str:
    """List the first few by name: `node a`, `nodes a, b`."""
    names = sorted(node.name for node in nodes)
    named = ", ".join([*names[:_MOST_NAMED], *(["..."] if len(names) > _MOST_NAMED else [])])
    return f"{'nodes' if len(names) > 1 else 'node'} {named}"


def _other_network(nearest: Alternatives, words: str, request: Request) -> NsmlError:
    """Build the refusal of a session that requests a network without nodes for it; `words` say so."""
    is_gang, asked = request.replica_count > 1, request.network or Network.OWN
    without = request._replace(network=None)
    taking = [node for kind in nearest.extent.taking(without) for node in kind.nodes]
    known = [node for node in taking if node.networks_for(request.replica_count)]
    if asked is Network.NONE and not is_gang:  # all that isolate offer it, except older versions
        known = [node for node in taking if not node.keeps_apart]
    old = [] if is_gang else [node for node in taking if node not in known]
    setting, change = _NETWORKS[is_gang, asked]
    reasons = []
    if known:
        reasons.append(f"{_named(known)}: {setting}")
    if old:
        noted = [node for node in old if node.networks]
        older = [node for node in old if not node.networks]
        if noted:
            reasons.append(f"{_named(noted)}: nsml node show says why, or the agent is older")
        if older:
            reasons.append(f"{_named(older)}: the agent is of an older version")
    return CannotEverFit(
        f"{_NEVER}: {words}",
        why="; ".join(reasons),
        attempt=_lines(
            nearest.words(request),
            change,
            _LOOK,
        ),
    )


def _no_network(nearest: Alternatives, shut: Sequence[Node], request: Request) -> NsmlError:
    """Build the refusal of a gang because of nodes without a network for gangs."""
    has_containers = any(node.isolation is Isolation.CONTAINER for node in shut)
    is_all = len(shut) == len(nearest.extent.nodes)
    return CannotEverFit(
        f"{_NEVER}: {'no node gives' if is_all else 'too few nodes give'} gangs a network",
        why=f"{_named(shut)}: "
        + ("containers without a gang_network" if has_containers else "gang_network is none"),
        attempt=_lines(
            nearest.words(request),
            "nsml down, then nsml up --isolation namespace    on a machine of your own",
            'gang_network = "host" in agent.site.toml of a pod\'s nodes    their administrator',
        ),
    )


def _other_ways(nodes: Sequence[Node]) -> str:
    """Return the command that lists nodes or, without any GPU, one that simulates GPUs."""
    if any(node.devices for node in nodes):
        return _LOOK
    return "nsml up --simulate-gpus 2    on a machine of your own, after nsml down"
