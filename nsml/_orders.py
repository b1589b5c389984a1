"""Orders: requests of the agent to a running program, handled at a safe point.

A connection to the replica's socket serves one order and its answer, a JSON line each way for both:
`{"v": 1, "op": "order"}` is answered with `{"ok": true, "order": ORDER or null}`; ORDER is
`{"kind": "evaluate", "expression": TEXT, "limit_s": SECONDS}`, and
`{"v": 1, "op": "answer", "answer": ANSWER}`, the result of `nsml._expressions`, with `{"ok": true}`.
"""

from __future__ import annotations

import os

from nsml._agent import Conversation
from nsml._expressions import Evaluator
from nsml._strict import comes_from_signal, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict

_ANSWERS_WITHIN_S = 2.0
"""How long training waits for the agent, which has sent an order."""
_evaluator = Evaluator()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_evaluator.after_fork)


def obey(
    run_dir: str,
    scope: Callable[[], Dict[str, Any]],
    note: Callable[[Any], None] = lambda _: None,
    hear: Callable[[Conversation, Any], None] = lambda *_: None,
) -> None:
    """Fetch the order for this process, if any, and answer it. Raises OSError, ValueError.

    `note` is called at once with the agent's change, or None; `hear` is called with it after the answer, to continue
    the conversation.
    """
    with Conversation(run_dir, timeout_s=_ANSWERS_WITHIN_S) as agent:
        rank = os.environ.get("LOCAL_RANK", "")
        said = agent.ask({"op": "order", "local_rank": int(rank) if rank.isdecimal() else 0})
        note(said.get("change"))
        order = said.get("order")
        if isinstance(order, dict) and order.get("kind") == "evaluate":
            agent.ask({"op": "answer", "answer": _evaluated(order, scope)})
        if "change" in said:  # older agents do not support changes
            hear(agent, said["change"])


def _evaluated(order: Dict[str, Any], scope: Callable[[], Dict[str, Any]]) -> Dict[str, Any]:
    try:
        code, limit_s = str(order["expression"]), float(order["limit_s"])
        return _evaluator.evaluate(code, scope(), limit_s)
    except Exception as error:  # no more threads, or an invalid scope in a report
        if comes_from_signal(error):
            raise
        return {"error": f"it could not be evaluated: {reason(error)}"}
