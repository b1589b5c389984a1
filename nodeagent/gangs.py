"""What the replicas of a gang are told so that they find one another.

Every replica of an attempt comes to the same answers by itself. Rank r may listen at port
`meeting_port(attempt) + r` of its node; that of rank 0 is MASTER_PORT. The number changes from
attempt to attempt, and lies below those that the system gives away.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from nodeagent.folders import ReplicaId

_FIRST_PORT = 20_000
_PORTS = 10_000


def gang_variables(replica: ReplicaId, hosts: Sequence[str], world: int) -> dict[str, str]:
    """The variables of torch's `env://` and of NSML's constants for one replica.

    Each replica counts as a node of its own, wherever it was placed: it sees its own devices only,
    from 0 on, so that LOCAL_RANK is 0 and NODE_RANK its rank. A replica with several devices starts
    `torchrun --node-rank $NODE_RANK --nnodes $WORLD_SIZE`, which counts anew below it.

    Args:
        replica: who is told.
        hosts: of all replicas by rank, as other nodes reach them.
        world: how many replicas there are.
    """
    port = meeting_port(replica)
    return {
        "NSML_WORLD_SIZE": str(world),
        "NSML_PARALLEL_WORLD": ",".join(hosts),
        "NSML_PARALLEL_PORTS": ",".join(str(port + rank) for rank in range(world)),
        "MASTER_ADDR": hosts[0] if world > 1 else "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(replica.rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": "0",
        "NODE_RANK": str(replica.rank),
    }


def meeting_port(replica: ReplicaId) -> int:
    """The port of rank 0, known to all replicas of the attempt."""
    return _FIRST_PORT + zlib.crc32(f"{replica.session_id}.{replica.attempt}".encode()) % _PORTS


def own_port(replica: ReplicaId) -> int:
    """The port that this replica may listen at."""
    return meeting_port(replica) + replica.rank
