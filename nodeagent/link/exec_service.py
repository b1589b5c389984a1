"""The service agent.exec: evaluates code in the running program of a replica, at its next safe point."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from nodeagent.replica.orders import NotAnswered, Order
from nsml.spec import evaluation
from nsml.spec.frames import framed
from nsml.v1 import sessions_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from google.protobuf.duration_pb2 import Duration

    from nodeagent.link.services import RunningReplica, Stream
    from nodeagent.replica.orders import ProgramOrders, ReplicaOrders

_MOST_REQUEST: Final = evaluation.MOST_BYTES + 1024
_MOST_NAMES: Final = 5
_MOST_NAME_CHARS: Final = 100
_BEYOND_LIMIT_S: Final = 5.0
"""Time after its limit in which a process reports the interruption: C code may block all threads."""


class Expressions:
    """Serves `agent.exec`; `orders` reach the programs of this node."""

    def __init__(self, orders: ProgramOrders) -> None:
        self._orders = orders

    async def serve(self, replica: RunningReplica, stream: Stream) -> None:
        """Evaluate the request's code, and report progress."""
        said = b""
        while (data := await stream.read()) and len(said) <= _MOST_REQUEST:
            said += data
        try:
            request = pb.EvaluateRequest.FromString(said)
            await _carry_out(
                request, self._orders.to(replica.id), replica.user, partial(_tell, stream)
            )
        except DecodeError:
            await _tell(stream, pb.EvaluateResponse(refused="its client cannot be understood"))
        except NotAnswered as error:
            await _tell(stream, pb.EvaluateResponse(refused=str(error)))


async def _carry_out(
    request: pb.EvaluateRequest,
    orders: ReplicaOrders,
    user: str,
    tell: Callable[[pb.EvaluateResponse], Awaitable[None]],
) -> None:
    """Evaluate it; `tell` gets its progress, and finally the result. Raises NotAnswered."""
    limit_s, wait_s = evaluation.USUAL_LIMIT_S, evaluation.USUAL_WAIT_S
    if request.HasField("limit"):
        limit_s = _within(request.limit, evaluation.LEAST_LIMIT_S, evaluation.LONGEST_LIMIT_S)
    if request.HasField("wait"):
        wait_s = _within(request.wait, 0.0, evaluation.LONGEST_WAIT_S)
    if len(request.expression.encode()) > evaluation.MOST_BYTES:
        raise NotAnswered(f"the code is too long: {evaluation.MOST_BYTES >> 10} KiB is the most")
    content = {"kind": "evaluate", "expression": request.expression, "limit_s": limit_s}
    order = Order(content=content, local_rank=request.local_rank, user=user)
    # Send nothing within a timeout: a cancelled write breaks the connection.
    give_up_at = asyncio.get_running_loop().time() + wait_s
    if orders.user:
        await tell(pb.EvaluateResponse(behind=orders.user))
    async with AsyncExitStack() as turn:
        try:
            async with asyncio.timeout_at(give_up_at):
                await turn.enter_async_context(orders.opened(order))
            await tell(pb.EvaluateResponse(waits=True))
            async with asyncio.timeout_at(give_up_at):
                await orders.taken(order)
        except TimeoutError:
            if not order.is_taken.is_set():  # else it was taken at the last moment
                raise NotAnswered(
                    f"its program reached no safe point within {wait_s:g} s, or does not import nsml"
                    " (what it does instead: nsml stacks)"
                ) from None
        await tell(pb.EvaluateResponse(runs=True))
        answer = await _answered(order, limit_s)
    await tell(pb.EvaluateResponse(evaluated=_evaluated(answer)))


async def _answered(order: Order, limit_s: float) -> dict[str, Any]:
    try:
        async with asyncio.timeout(limit_s + _BEYOND_LIMIT_S):
            return await order.answer
    except TimeoutError:
        raise NotAnswered("its program has not stopped it at the time limit") from None


def _within(asked: Duration, least_s: float, most_s: float) -> float:
    return min(max(asked.ToNanoseconds() / 1e9, least_s), most_s)


def _evaluated(answer: dict[str, Any]) -> pb.Evaluated:
    """Parse an answer of user code, dropping what is invalid."""
    took = answer.get("took_s")
    message = pb.Evaluated(
        value=_text(answer.get("value")) if isinstance(answer.get("value"), str) else None,
        output=_text(answer.get("output")),
        error=_text(answer.get("error")),
        is_late=answer.get("is_late") is True,
        is_cut=answer.get("is_cut") is True,
        hides=_names(answer.get("hides")),
    )
    if isinstance(took, float) and 0 <= took < evaluation.LONGEST_WAIT_S:
        message.took.FromNanoseconds(round(took * 1e9))
    return message


def _names(value: Any) -> list[str]:
    found = value[:_MOST_NAMES] if isinstance(value, list) else []
    return [one[:_MOST_NAME_CHARS] for one in map(_text, found) if one]


def _text(value: Any) -> str:
    """Truncate a text, without half characters; "" for anything else."""
    if not isinstance(value, str):
        return ""
    most = evaluation.MOST_BYTES
    return value[:most].encode("utf-8", "replace")[:most].decode("utf-8", "ignore")


async def _tell(stream: Stream, response: pb.EvaluateResponse) -> None:
    await stream.write(framed(response.SerializeToString()))
