"""The shape in which every benchmark reports."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping


def report(figures: Mapping[str, float], *, peers: Mapping[str, float] | None = None) -> None:
    """Print the figures: one JSON object with --json on the command line, else a table.

    A peer of the same name as a figure stands beside it.
    """
    peers = dict(peers or {})
    host = {
        "cores": os.cpu_count() or 0,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    if "--json" in sys.argv:
        print(json.dumps({"figures": dict(figures), "peers": peers, "host": host}))
        return
    width = max(map(len, (*figures, *peers)), default=0) + 2
    for name, value in {**figures, **peers, **figures}.items():
        beside = f"   peer {peers[name]:,.2f}" if name in figures and name in peers else ""
        print(f"{name:<{width}}{value:>14,.2f}{beside}")
    print(f"on {host['cores']} cores, Python {host['python']}, {host['system']}")


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
