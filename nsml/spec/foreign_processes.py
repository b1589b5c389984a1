"""How an agent begins to say why it withholds a device that a process of no session uses."""

USED_BY = "used by process "
