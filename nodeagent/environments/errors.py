"""Errors of building an environment."""

from __future__ import annotations


class EnvironmentFailed(Exception):
    """The environment cannot be made; the message is one line, for its user."""


class ImageUnavailable(EnvironmentFailed):
    """The node may not use an image, or no registry provides it; another image may do."""


class EnvironmentCancelled(Exception):
    """The caller no longer wants the environment."""


class DefaultsUnfit(EnvironmentFailed):
    """The code's requirements conflict with the node's default packages; the message says why."""
