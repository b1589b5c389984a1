"""The leader's loops: what goes on by itself."""
