"""Optional packages of a control plane."""

from __future__ import annotations

import importlib.util


def shows_dashboards() -> bool:
    """Return whether the extra `web` is installed; one of its packages alone may be of an unsupported version."""
    return all(importlib.util.find_spec(name) for name in ("textual_serve", "websockets"))
