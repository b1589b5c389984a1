"""Fixtures of the tests that run real servers."""

from tests.support.etcd import etcd_server
from tests.support.postgres import postgres_database, postgres_server
from tests.support.s3 import s3

__all__ = ["etcd_server", "postgres_database", "postgres_server", "s3"]
