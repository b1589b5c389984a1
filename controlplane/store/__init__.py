"""Coordination: the etcd client, its embedded counterpart, tables, caches and leader election."""
