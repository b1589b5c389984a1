"""Servers for tests of upgrades."""

from tests.postgres import postgres_server

__all__ = ["postgres_server"]
