"""What is written in etcd."""
