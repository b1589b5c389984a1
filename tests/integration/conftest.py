"""Fixtures of the tests that run real servers."""

from tests.etcd import etcd_server

__all__ = ["etcd_server"]
