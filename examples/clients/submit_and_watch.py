"""Submit a session, watch it, and read its metrics: plain gRPC, nothing but the contract.

    python examples/clients/submit_and_watch.py SERVER TOKEN_FILE

It needs `grpcio` and the code generated from proto/nsml/v1 (`nsml.v1` here; any language has its own). SERVER
and the token's file are shown by `nsml context ls -o wide`. The same from a shell, without any generated code:

    grpcurl -plaintext -H "authorization: Bearer $(cat TOKEN_FILE)" SERVER list
    grpcurl -plaintext -H "authorization: Bearer $(cat TOKEN_FILE)" \
        -d '{"filter": {"include_ended": true}}' SERVER nsml.v1.SessionService/ListSessions
"""

import sys
import uuid
from pathlib import Path

import grpc

from nsml.v1 import resources_pb2, sessions_pb2, sessions_pb2_grpc

PROGRAM = """
import nsml
for step in range(5):
    nsml.report(step=step, train__loss=1.0 / (step + 1), summary=True)
    print("step", step)
"""

ENDED = {
    sessions_pb2.SESSION_STATE_SUCCEEDED,
    sessions_pb2.SESSION_STATE_FAILED,
    sessions_pb2.SESSION_STATE_STOPPED,
}


def main(server: str, token_file: str) -> int:
    token = Path(token_file).read_text().strip()
    metadata = (("authorization", f"Bearer {token}"),)
    with grpc.insecure_channel(server) as channel:
        sessions = sessions_pb2_grpc.SessionServiceStub(channel)
        # With a request id of our own, a lost answer can be asked for again without a second session.
        created = sessions.CreateSession(
            sessions_pb2.CreateSessionRequest(
                request_id=uuid.uuid4().hex,
                spec=sessions_pb2.SessionSpec(
                    argv=["python3", "-c", PROGRAM],
                    resources=resources_pb2.Resources(gpu_thousandths=1000),
                ),
                memo="submitted by a script",
            ),
            metadata=metadata,
        ).session
        print("submitted", created.name)

        # The stream of points ends when the session has ended and everything was sent.
        points = sessions.ReadMetrics(
            sessions_pb2.ReadMetricsRequest(session=created.id, follow=True), metadata=metadata
        )
        for answer in points:
            for point in answer.points:
                print(f"{point.name} step {point.step:g}: {point.number:.4f}")

        request = sessions_pb2.GetSessionRequest(session=created.id)
        session = sessions.GetSession(request, metadata=metadata).session
        print("ended", sessions_pb2.SessionState.Name(session.state))
        return 0 if session.end.exit_code == 0 and session.state in ENDED else 1


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2]))
