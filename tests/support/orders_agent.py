"""An agent that speaks with programs about orders and changes, over a real socket, as a test tells it to."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

WAITS_S = 60.0


class OrdersAgent:
    """The agent's side of `orders` and `socket` in a run folder.

    Attributes:
        change: what it says now.
        reports: what programs have said of changes.
        answers: to orders.
        on_report: called with each report before it is answered.
        knows_changes: whether it is one of today.
        is_member: what it says to whom it hears.
    """

    def __init__(self, run_dir: Path) -> None:
        self.change: dict[str, Any] | None = None
        self.reports: list[dict[str, Any]] = []
        self.answers: list[dict[str, Any]] = []
        self.on_report: Callable[[dict[str, Any]], None] = lambda _: None
        self.knows_changes = True
        self.is_member = True
        self.connections = 0
        self._orders: list[dict[str, Any]] = []
        self._number = 0
        self._run_dir = run_dir
        self._page = run_dir / "orders"
        self._page.write_bytes(bytes(8) + b"nsml orders 1\n".ljust(56, b"\0"))
        self._news = threading.Condition()
        self.open()

    def open(self) -> None:
        """Begin to listen."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._run_dir / "socket"))
        self._listener.listen()
        threading.Thread(target=self._serve, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        """Be gone."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        (self._run_dir / "socket").unlink()

    def __enter__(self) -> OrdersAgent:  # noqa: PYI034
        return self

    def __exit__(self, *_: object) -> None:
        if self._listener.fileno() >= 0:
            self.close()

    def call(self) -> None:
        """Change the number of the page."""
        self._number += 1
        with self._page.open("r+b") as file:
            file.write(self._number.to_bytes(8, "big"))

    def say(self, change: dict[str, Any] | None) -> None:
        """Speak of a change from now on."""
        self.change = change
        self.call()

    def order(self, expression: str, limit_s: float = 5.0) -> None:
        """Have an expression evaluated."""
        self._orders.append({"kind": "evaluate", "expression": expression, "limit_s": limit_s})
        self.call()

    def wait(self, holds: Callable[[], Any]) -> Any:
        """What holds, once it does: looked at after each message."""
        until = time.monotonic() + WAITS_S
        with self._news:
            while not (found := holds()):
                assert time.monotonic() < until, (self.change, self.reports[-3:])
                self._news.wait(0.05)
        return found

    def wait_is(self, number: int, state: str) -> dict[str, Any]:
        """The first report that a change is in this state."""

        def found() -> dict[str, Any] | None:
            for report in list(self.reports):
                known = report["known"]
                if known and (known["number"], known["is"]) == (number, state):
                    return report
            return None

        return self.wait(found)  # type: ignore[no-any-return]

    def states(self, number: int) -> list[str]:
        """What was said of one change, each once in a row."""
        said = [
            one["known"]["is"]
            for one in self.reports
            if (one["known"] or {}).get("number") == number
        ]
        return [state for place, state in enumerate(said) if not place or said[place - 1] != state]

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._converse, args=(connection,), daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        with suppress(ConnectionError), connection, connection.makefile("rwb") as stream:
            for line in stream:
                answer = self._answer(json.loads(line))
                with self._news:
                    self._news.notify_all()
                stream.write(json.dumps(answer).encode() + b"\n")
                stream.flush()

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        assert message.pop("v") == 1
        match message.pop("op"):
            case "order":
                order = self._orders.pop(0) if self._orders else None
                return {"ok": True, "order": order} | (
                    {"change": self.change} if self.knows_changes else {}
                )
            case "answer":
                self.answers.append(message["answer"])
                return {"ok": True}
            case "change" if self.knows_changes:
                json.dumps(message, allow_nan=False)
                self.reports.append(message)
                self.on_report(message)
                return {"ok": True, "change": self.change, "is_member": self.is_member}
            case _:
                return {"ok": False, "error": "INVALID", "message": "there is no such request"}


def change(number: int, phase: str, kind: str = "set", **more: Any) -> dict[str, Any]:
    """A change as an agent says it; `at` alone is of the counter of `nsml.step`."""
    counter = more.pop("counter", "step" if more.get("at") is not None else "")
    whole = {
        "values": {},
        "checkpoint": "",
        "session": "",
        "limit_s": 3600.0,
        "by": "kim",
        "at": None,
    }
    return {"number": number, "phase": phase, "kind": kind, "counter": counter, **whole, **more}
