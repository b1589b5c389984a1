"""`nsml doctor chaos` is started as any command is."""

from __future__ import annotations

from tests.unit.cli.conftest import environ, home, nsml, running_server, server  # noqa: F401
