"""The way to the control planes: which address, over which channel, and what goes both ways."""
