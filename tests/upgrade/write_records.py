"""Run with the code of the version before: records as it wrote them, one a line as JSON."""

import json

from plain_values import plain

from controlplane.domain.lifecycle import ReplicaPhase, SessionState
from controlplane.domain.values import (
    AllocatedReplica,
    Allocation,
    Cause,
    DatasetVersion,
    Device,
    DeviceShare,
    Drain,
    End,
    EndedAttempt,
    Exit,
    Fence,
    Isolation,
    Node,
    Replica,
    Resources,
    Session,
    SessionSpec,
    Stop,
    Visibility,
)

# isort: split
from controlplane.operations import records  # where the version before had it

devices = tuple(
    Device(uuid=f"u{i}", index=i, model="A100", memory_bytes=1 << 36, simulated=True)
    for i in (0, 1)
)
held = Resources(gpu_thousandths=2000, cpu_thousandths=500, memory_bytes=1 << 33)
ended = Exit(
    cause=Cause.OUT_OF_MEMORY, exit_code=-9, message="killed", started_at=1.5, ended_at=2.5
)
written = {
    "session": Session(
        id="s1",
        name="kim/mnist/1",
        owner="kim",
        spec=SessionSpec(
            entry="main.py",
            args=("--lr", "0.1"),
            bundle_digest="sha256:1",
            datasets=(DatasetVersion(owner="lee", name="mnist", version=3, digest="sha256:2"),),
            resources=held,
            replica_count=2,
            environment={"A": "1", "B": "2"},
            image="image:1",
            time_limit_s=60.0,
            retry_count=4,
            lost_after_s=30.5,
        ),
        created_at=1e9,
        project="vision",
        visibility=Visibility.TEAM,
        state=SessionState.STOPPING,
        attempt=2,
        replicas=(
            Replica(
                rank=0,
                node="n1",
                devices=devices,
                resources=held,
                phase=ReplicaPhase.EXITED,
                exit=ended,
            ),
            Replica(rank=1, node="n2", devices=devices, resources=held),
        ),
        end=End(cause=Cause.NODE_LOST, exit_code=1, rank=1, message="gone"),
        command=("nsml", "run"),
        request_id="r1",
        request_digest=b"\x00\xff",
        stop=Stop(grace_s=5.0, reason="too slow", asked_by="lee"),
        attempts=(
            EndedAttempt(
                number=1,
                cause=Cause.NODE_LOST,
                placed_at=1.0,
                ended_at=2.0,
                gpu_thousandths=500,
                held_s=1.0,
                nodes=("n1", "n2"),
            ),
        ),
    ),
    "node": Node(
        name="n1",
        boot_id="b1",
        capacity=held,
        devices=devices,
        isolation=Isolation.CONTAINER,
        agent_version="0.1.0",
        pod="p1",
        registered_at=3.0,
        drain=Drain(asked_by="root", reason="fan", asked_at=4.0),
        fence=Fence(boot_id="b0", replicas=frozenset({("s1", 1, 0), ("s2", 3, 5)})),
    ),
    "allocation": Allocation(
        node="n1",
        replicas=(
            AllocatedReplica(
                session_id="s1",
                attempt=2,
                rank=0,
                devices=(DeviceShare(uuid="u0", thousandths=500),),
                memory_bytes=7,
            ),
        ),
    ),
}
for name, value in written.items():
    print(json.dumps([name, plain(value), getattr(records, "encode_" + name)(value).hex()]))
