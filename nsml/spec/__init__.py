"""Rules shared by clients and servers: the flags of `run`, the limits of a request, names, exit codes."""
