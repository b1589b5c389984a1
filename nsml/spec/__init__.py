"""What both ends of the contract hold to: the flags of `run`, the limits of a request, names, exit codes."""
