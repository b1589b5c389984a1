"""What the replicas of a gang are told so that they find one another.

Every replica of an attempt comes to the same answers by itself. Rank r may listen at port
`meeting_port(attempt) + r` of its node; that of rank 0 is MASTER_PORT. The number changes from
attempt to attempt, and lies below those that the system gives away.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nodeagent.folders import ReplicaId

_FIRST_PORT = 20_000
_PORTS = 10_000


HOST = "host"
NONE = "none"
_OVERLAY = "overlay:"
_NETWORK = re.compile(r"overlay:[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GangNetwork:
    """How the replicas of gangs on this node reach others, as its administrator allows.

    `mode` is `host`, `overlay:NAME` (a network of the container engine) or `none`. `devices` are
    nodes or folders of /dev for fast networks. `unlimited_memlock`: containers may register as much
    memory with such devices as they like. `environment` is for every gang; a session's own stands.
    """

    mode: str = HOST
    devices: tuple[str, ...] = ()
    unlimited_memlock: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def engine_network(self) -> str:
        """Its name for a container engine."""
        return self.mode.removeprefix(_OVERLAY)

    @property
    def is_overlay(self) -> bool:
        """Whether containers get a network of their own there, with names."""
        return self.mode.startswith(_OVERLAY)

    def hosts(self, replica: ReplicaId, of_nodes: Sequence[str]) -> list[str]:
        """Where the replicas are reached, by rank: at their nodes, or by names within an overlay."""
        if not self.is_overlay:
            return list(of_nodes)
        return [overlay_name(replica, rank) for rank in range(len(of_nodes))]


def overlay_name(replica: ReplicaId, rank: int) -> str:
    """The name of a rank of the replica's attempt within an overlay network."""
    return f"{replica.session_id}-{replica.attempt}-{rank}"


def is_mode(text: str) -> bool:
    """Whether `text` is a mode of a GangNetwork."""
    return text in {HOST, NONE} or _NETWORK.fullmatch(text) is not None


def interface_variables(mode: str, interface: str) -> dict[str, str]:
    """What tells torch's gloo at which interface of the node the others of a gang reach it.

    Left to itself it takes the address that the node's own name has there, which is often one of the
    loopback, and replicas on several nodes never meet. A network of an engine has names of its own.
    """
    return {"GLOO_SOCKET_IFNAME": interface} if mode == HOST and interface else {}


def gang_variables(
    replica: ReplicaId, hosts: Sequence[str], world: int, devices: int
) -> dict[str, str]:
    """Return the variables of torch's `env://` and of NSML's constants for one replica.

    A replica counts as a node, wherever it was placed: it sees its own devices only, numbered from
    0. `RANK`, `WORLD_SIZE` and `LOCAL_RANK` describe a process, so they are set only where each
    replica is one: Lightning and accelerate read them as a launcher's, and start no processes for
    further devices.

    Args:
        replica: the replica that gets them.
        hosts: of all replicas by rank, as other nodes reach them.
        world: number of replicas.
        devices: number of devices of each replica.
    """
    port = meeting_port(replica)
    variables = {
        "NSML_WORLD_SIZE": str(world),
        "NSML_PARALLEL_WORLD": ",".join(hosts),
        "NSML_PARALLEL_PORTS": ",".join(str(port + rank) for rank in range(world)),
        "MASTER_ADDR": hosts[0] if world > 1 else "127.0.0.1",
        "MASTER_PORT": str(port),
        "NODE_RANK": str(replica.rank),
    }
    if world > 1 and devices <= 1:
        variables |= {"RANK": str(replica.rank), "WORLD_SIZE": str(world), "LOCAL_RANK": "0"}
    return variables


def launcher_variables(gang: Mapping[str, str], world: int, devices: int) -> dict[str, str]:
    """Return defaults for launchers, which a session may set otherwise.

    torchrun reads the defaults of its options from `PET_*` (torch.distributed.argparse_util), so
    that `torchrun train.py` starts a process for each device of each replica.

    Args:
        gang: the replica's `gang_variables`.
        world: number of replicas.
        devices: number of devices of each replica.
    """
    return {
        "NNODES": str(world),
        "PET_NNODES": str(world),
        "PET_NPROC_PER_NODE": str(max(devices, 1)),
        **{f"PET_{name}": gang[name] for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")},
    }


def meeting_port(replica: ReplicaId) -> int:
    """The port of rank 0, known to all replicas of the attempt."""
    return _FIRST_PORT + zlib.crc32(f"{replica.session_id}.{replica.attempt}".encode()) % _PORTS


def own_port(replica: ReplicaId) -> int:
    """The port that this replica may listen at."""
    return meeting_port(replica) + replica.rank
