"""Generated from proto/controlplane/store/etcdpb: the part of etcd's API that the store calls."""
