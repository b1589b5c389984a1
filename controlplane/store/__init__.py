"""Coordination: etcd behind one door, its embedded twin, tables, caches and the election."""
