"""Fixtures of the contract suites: the engines of the store."""

from tests.contract.store_engines import engine
from tests.support.etcd import etcd_server
from tests.support.postgres import (
    _kept_database,
    emptied_database,
    postgres_database,
    postgres_server,
)

__all__ = [
    "_kept_database",
    "emptied_database",
    "engine",
    "etcd_server",
    "postgres_database",
    "postgres_server",
]
