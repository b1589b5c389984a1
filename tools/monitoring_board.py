"""Writes the Grafana board of deploy/monitoring; `--check` says whether it is as it should be."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

BOARD: Final = Path(__file__).parents[1] / "deploy/monitoring/nsml.grafana.json"

_HALF, _WHOLE, _HIGH = 12, 24, 8

PANELS: Final[tuple[tuple[str, str, int, tuple[tuple[str, str], ...], str], ...]] = (
    (
        "Conditions",
        "table",
        _WHOLE,
        (("max by (name, of) (nsml_condition) == 1", "{{name}} {{of}}"),),
        "short",
    ),
    (
        "Control planes",
        "timeseries",
        _HALF,
        (("max(nsml_controlplanes)", "run"), ("sum(nsml_leads)", "lead")),
        "short",
    ),
    ("Term of the leader", "timeseries", _HALF, (("max(nsml_leader_term)", "term"),), "short"),
    (
        "GPUs",
        "timeseries",
        _HALF,
        (
            ("sum(max by (model) (nsml_gpus_ready))", "ready"),
            ("sum(max by (model) (nsml_gpus_allocated))", "allocated"),
            ("max(nsml_gpus_busy)", "above 80 %"),
        ),
        "short",
    ),
    ("Nodes", "timeseries", _HALF, (("max by (state) (nsml_nodes)", "{{state}}"),), "short"),
    (
        "Sessions",
        "timeseries",
        _HALF,
        (("max by (state) (nsml_sessions)", "{{state}}"),),
        "short",
    ),
    (
        "Longest wait in the queue",
        "timeseries",
        _HALF,
        (("max(nsml_queue_oldest_seconds)", "oldest"),),
        "s",
    ),
    (
        "Room of the stores",
        "timeseries",
        _HALF,
        (("min by (store) (nsml_store_room_bytes)", "{{store}}"),),
        "bytes",
    ),
    (
        "Calls",
        "timeseries",
        _HALF,
        (("sum by (code) (rate(nsml_rpc_calls_total[5m]))", "{{code}}"),),
        "reqps",
    ),
    (
        "Slowest calls (99 %)",
        "timeseries",
        _HALF,
        (
            (
                "topk(5, histogram_quantile(0.99, sum by (method, le) (rate(nsml_rpc_seconds_bucket[5m]))))",
                "{{method}}",
            ),
        ),
        "s",
    ),
    (
        "Days until certificates end",
        "timeseries",
        _HALF,
        (("min by (node) (nsml_node_certificate_end_seconds - time()) / 86400", "{{node}}"),),
        "d",
    ),
    (
        "Clocks of nodes",
        "timeseries",
        _HALF,
        (("max by (node) (nsml_node_clock_ahead_seconds)", "{{node}}"),),
        "s",
    ),
    (
        "Refused joins",
        "timeseries",
        _HALF,
        (("sum(increase(nsml_joins_refused_total[10m]))", "refused"),),
        "short",
    ),
)
"""Title, kind, width in 24ths, queries with their legends, unit."""


def board() -> dict[str, Any]:
    """The board, as Grafana imports it."""
    panels, x, y = [], 0, 0
    for number, (title, kind, width, queries, unit) in enumerate(PANELS, 1):
        if x + width > _WHOLE:
            x, y = 0, y + _HIGH
        panels.append(
            {
                "id": number,
                "title": title,
                "type": kind,
                "datasource": {"type": "prometheus", "uid": "${datasource}"},
                "gridPos": {"x": x, "y": y, "w": width, "h": _HIGH},
                "fieldConfig": {"defaults": {"unit": unit, "min": None}, "overrides": []},
                "targets": [
                    {
                        "refId": chr(ord("A") + index),
                        "expr": expr,
                        "legendFormat": legend,
                        "instant": kind == "table",
                        "format": "table" if kind == "table" else "time_series",
                    }
                    for index, (expr, legend) in enumerate(queries)
                ],
            }
        )
        x += width
    source = {"name": "datasource", "type": "datasource", "query": "prometheus"}
    return {
        "uid": "nsml",
        "title": "nsml",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [source]},
        "panels": panels,
    }


def main() -> int:
    """Write the board, or compare it."""
    text = json.dumps(board(), indent=1) + "\n"
    if sys.argv[1:] == ["--check"]:
        if BOARD.read_text(encoding="utf-8") == text:
            return 0
        print(f"{BOARD} is not what tools/monitoring_board.py writes: make generate")
        return 1
    BOARD.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
