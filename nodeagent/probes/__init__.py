"""What the agent reads of the machine: devices (one protocol) and the host."""
