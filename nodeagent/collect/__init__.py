"""Output of replicas: read from their files, sent to the control plane, and acknowledged."""
