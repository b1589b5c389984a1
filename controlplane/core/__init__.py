"""Shared parts of all areas of the control plane, and the contribution of an area."""
