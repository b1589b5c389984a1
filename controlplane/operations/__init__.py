"""The use cases: what users and agents may want, decided and written. The only writers of etcd."""
