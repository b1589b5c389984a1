"""The connection to the control planes: addresses, channels, and messages both ways."""
