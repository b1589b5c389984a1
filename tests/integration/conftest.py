"""Fixtures of the tests that run real servers."""

from tests.etcd import etcd_server
from tests.postgres import postgres_database, postgres_server
from tests.s3 import s3

__all__ = ["etcd_server", "postgres_database", "postgres_server", "s3"]
