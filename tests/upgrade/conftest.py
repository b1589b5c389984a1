"""Servers for tests of upgrades."""

from tests.support.postgres import postgres_server

__all__ = ["postgres_server"]
