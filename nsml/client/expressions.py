"""Evaluate code in the program of a running session, at its next safe point."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from nsml.client.errors import ConnectionLost, StateConflict, TooLarge, Unavailable
from nsml.client.tunnels import open_agent_service
from nsml.spec import agent_services
from nsml.spec.evaluation import MOST_BYTES, USUAL_LIMIT_S, USUAL_WAIT_S
from nsml.spec.frames import Frames, NotFrames
from nsml.v1 import sessions_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from nsml.client.rpc import Rpc
    from nsml.client.tunnels import Tunnel


async def evaluate(
    rpc: Rpc,
    reference: str,
    expression: str,
    *,
    rank: int = 0,
    local_rank: int = 0,
    limit_s: float = USUAL_LIMIT_S,
    wait_s: float = USUAL_WAIT_S,
    told: Callable[[pb.EvaluateResponse], None] | None = None,
) -> pb.Evaluated:
    """Evaluate code in a replica's program, which waits meanwhile; return the result.

    The result has the value of the last line of `expression`, if that is an expression. The replica's process
    with this LOCAL_RANK evaluates it, for at most `limit_s` seconds, once it has reached a safe point, within
    `wait_s` seconds. `told` is called with the progress.

    Raises:
        StateConflict: the program did not evaluate it, or did not report the result.
        ConnectionLost: it is unknown whether it was evaluated.
        TooLarge: the code is too long.
        ClientError: as `nsml.client.tunnels.open_tunnel`.
    """
    if len(expression.encode("utf-8", "replace")) > MOST_BYTES:
        raise TooLarge("the code is too long", why=f"{MOST_BYTES >> 10} KiB is the most")
    request = pb.EvaluateRequest(expression=expression, local_rank=local_rank)
    request.limit.FromNanoseconds(round(limit_s * 1e9))
    request.wait.FromNanoseconds(round(wait_s * 1e9))
    async with open_agent_service(
        rpc, reference, agent_services.EXEC, rank=rank, what="nsml exec"
    ) as tunnel:
        await tunnel.write(request.SerializeToString())
        await tunnel.end()
        is_taken = False
        async for response in _responses(tunnel):
            match response.WhichOneof("kind"):
                case "evaluated":
                    return response.evaluated
                case "refused":
                    what = "say what came of it" if is_taken else "evaluate it"
                    raise StateConflict(f"the program did not {what}", why=response.refused)
                case "runs":
                    is_taken = True
            if told is not None:
                told(response)
    raise _broken()


async def _responses(tunnel: Tunnel) -> AsyncIterator[pb.EvaluateResponse]:
    frames = Frames()
    try:
        while data := await tunnel.read():
            for message in frames.feed(data):
                yield pb.EvaluateResponse.FromString(message)
    except Unavailable as error:
        raise _broken() from error
    except (NotFrames, DecodeError) as error:
        raise ConnectionLost("the node's answer cannot be understood") from error


def _broken() -> ConnectionLost:
    return ConnectionLost("the connection broke", why="whether the code was evaluated is unknown")
