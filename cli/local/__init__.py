"""Commands about this machine: start, stop and join a platform, examine the machine."""
