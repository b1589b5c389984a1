"""Visdom of one view: plots that are redrawn as sessions report, and their server."""

from __future__ import annotations

import asyncio
import hashlib
import html
import json
import math
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import httpx

from nsml.common.text import visible
from nsml.view.live_series import GrowingCharts
from nsml.view.metrics import lines_in_order
from nsml.view.series import Axis

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nsml.v1.sessions_pb2 import MetricPoint, Session
    from nsml.view.series import Series

MOST_POINTS: Final = 1_000
"""Maximum points of one line: a plot is redrawn with all of them."""
MOST_SERIES: Final = 400
"""Maximum lines of a view, divided evenly among its sessions."""
SHOWN_EVERY_S: Final = 2.0
TOGETHER: Final = "main"
"""The environment of all sessions, which visdom shows first."""
_WITHIN_S: Final = 60.0


class Visdom:
    """See viewing.Board. Runs as a process of its own, on the Unix socket `http` of the folder."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._order = order
        self._socket = str(order["folder"] / "http")
        self._most_series = MOST_SERIES // len(order["sessions"])
        self._charts: dict[str, GrowingCharts] = {}
        self._environments: dict[str, str] = {}
        self._changed: set[str] = set()
        self._drawn: dict[tuple[str, str], bytes] = {}

    def start(self) -> None:
        """See Board.

        Raises:
            RuntimeError: it ended at once; its output is in the log.
        """
        process = subprocess.Popen(
            [self._order["python"], "-I", self._order["launcher"]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # One such thread per core would waste memory.
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
        assert process.stdin is not None  # noqa: S101 - asked for
        assert process.stdout is not None  # noqa: S101
        order = {"prefix": self._order["prefix"], "socket": self._socket}
        # Its stdin stays open until we exit; it exits when that closes.
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
        if process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"visdom ended with {process.wait()}")
        threading.Thread(target=_end_with, args=(process,), daemon=True).start()

    def add(self, session: Session, points: Sequence[MetricPoint]) -> None:
        """See Board."""
        if session.name not in self._charts:
            self._charts[session.name] = GrowingCharts(
                Axis.STEP, most_series=self._most_series, most_points=MOST_POINTS
            )
            self._environments[session.name] = environment(
                session, taken=self._environments.values()
            )
        for point in points:
            self._charts[session.name].add(visible(session.name), point)
        self._changed.add(session.name)

    async def show(self) -> None:
        """See Board."""
        transport = httpx.AsyncHTTPTransport(uds=self._socket)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://view", timeout=_WITHIN_S, trust_env=False
        ) as client:
            while True:
                began = time.monotonic()
                for window in self._windows():
                    await self._draw(client, window)
                # Leave half of its time for viewers.
                await asyncio.sleep(max(SHOWN_EVERY_S, time.monotonic() - began))

    def _windows(self) -> Iterator[dict[str, Any]]:
        """Yield windows of sessions with new points, and of all sessions together."""
        changed, self._changed = self._changed, set()
        if not changed:
            return
        together: dict[str, list[Series]] = {}
        for name, charts in sorted(self._charts.items()):
            groups = charts.groups()
            for metric, lines in groups.items():
                together.setdefault(metric, []).extend(lines)
            if name in changed:
                yield from windows(self._environments[name], groups, charts.left_out)
        left_out = {one for charts in self._charts.values() for one in charts.left_out}
        yield from windows(TOGETHER, lines_in_order(together), left_out)

    async def _draw(self, client: httpx.AsyncClient, window: Mapping[str, Any]) -> None:
        """Send a window to the server, if it has changed."""
        body = json.dumps(window, allow_nan=False).encode()
        digest = hashlib.blake2b(body, digest_size=16).digest()
        key = window["eid"], window["win"]
        if self._drawn.get(key) == digest:
            return
        answer = await client.post(f"{self._order['prefix']}/events", content=body)
        answer.raise_for_status()
        self._drawn[key] = digest


def _end_with(process: subprocess.Popen[bytes]) -> None:
    code = process.wait()
    print(f"visdom ended with {code}", file=sys.stderr)  # noqa: T201 - the log
    os._exit(1)


def environment(session: Session, *, taken: Any = ()) -> str:
    """Return a session's environment, named after it; visdom allows no slash there."""
    name: str = session.name.replace("/", "_")
    return f"{name}_{session.id}" if name in {*taken, TOGETHER} else name


def windows(
    eid: str, groups: Mapping[str, Sequence[Series]], left_out: set[str]
) -> Iterator[dict[str, Any]]:
    """Yield visdom's windows of an environment: a plot per metric, with a line per series."""
    if left_out:
        words = f"Not every metric of {', '.join(sorted(left_out))} is here: nsml plot -m NAME"
        text = {"type": "text", "content": html.escape(words)}
        yield {"eid": eid, "win": "window_left_out", "data": [text], "opts": {"title": "left out"}}
    for metric, lines in groups.items():
        digest = hashlib.blake2b(metric.encode(), digest_size=8).hexdigest()
        yield {
            "eid": eid,
            "win": f"window_{digest}",
            "data": [_trace(line) for line in lines],
            "layout": {
                "showlegend": len(lines) > 1 or eid == TOGETHER,
                "legend": {"orientation": "h", "y": -0.2},
                "margin": {"l": 60, "r": 20, "t": 20, "b": 60},
                "xaxis": {"title": {"text": "step"}},
            },
            "opts": {"title": visible(metric)},
        }


def _trace(line: Series) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines" if line.points > 1 else "markers",
        # Plotly renders names as a subset of HTML, which includes links.
        "name": html.escape(line.label, quote=False),
        "x": list(line.x),
        "y": [value if math.isfinite(value) else None for value in line.y],
    }
