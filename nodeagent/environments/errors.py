"""How the making of an environment ends without one."""

from __future__ import annotations


class EnvironmentFailed(Exception):
    """The environment cannot be made; why, on one line, for the session's user."""


class EnvironmentCancelled(Exception):
    """The caller no longer wants the environment."""


class DefaultsUnfit(EnvironmentFailed):
    """What code requires cannot be had beside the node's default packages; the message says why."""
