"""Orders: what the agent asks of a running program at a safe point, and how that is answered.

A connection to the replica's socket takes one order and its answer, a JSON line each way for both:
`{"v": 1, "op": "order"}` is answered with `{"ok": true, "order": ORDER or null}`; ORDER is
`{"kind": "evaluate", "expression": TEXT, "limit_s": SECONDS}`, and
`{"v": 1, "op": "answer", "answer": ANSWER}`, what `nsml._expressions` says, with `{"ok": true}`.
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
"""How long training waits for the agent, which has asked."""
_evaluator = Evaluator()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_evaluator.after_fork)


def obey(run_dir: str, scope: Callable[[], Dict[str, Any]]) -> None:
    """Take the order that there is for this process, if any, and answer it. Raises OSError, ValueError."""
    with Conversation(run_dir, timeout_s=_ANSWERS_WITHIN_S) as agent:
        rank = os.environ.get("LOCAL_RANK", "")
        order = agent.ask({"op": "order", "local_rank": int(rank) if rank.isdecimal() else 0}).get(
            "order"
        )
        if not isinstance(order, dict) or order.get("kind") != "evaluate":
            return
        try:
            code, limit_s = str(order["expression"]), float(order["limit_s"])
            answer = _evaluator.evaluate(code, scope(), limit_s)
        except Exception as error:  # no more threads, or a report with a scope that is none
            if comes_from_signal(error):
                raise
            answer = {"error": f"it could not be evaluated: {reason(error)}"}
        agent.ask({"op": "answer", "answer": answer})
