"""The records in etcd, generated from proto/controlplane/stored/v1."""
