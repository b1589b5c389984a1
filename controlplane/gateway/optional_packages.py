"""What may be installed beside a control plane, and need not be."""

from __future__ import annotations

import importlib.util


def shows_dashboards() -> bool:
    """Whether the extra `web` is there; one of its packages alone may be of a version that is none of ours."""
    return all(importlib.util.find_spec(name) for name in ("textual_serve", "websockets"))
