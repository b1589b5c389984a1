"""Names reserved for the platform: refused for users, projects and nodes."""

from __future__ import annotations

_WORDS = frozenset(
    {
        *("admin", "administrator", "anonymous", "controlplane", "everybody", "localhost"),
        *("nobody", "node", "none", "nsml", "operator", "platform", "root", "system", "user"),
    }
)
_PREFIXES = ("nsml-", "nsml_", "controlplane-", "controlplane_")


def is_reserved_for_platform(name: str, *, of_node: bool = False) -> bool:
    """Return whether a name is refused for a new user, project or node.

    A node's name implies no rights, so for nodes only the names are reserved that certificates
    contain or that mean another machine.
    """
    if name.startswith(_PREFIXES):
        return True
    return name in {"controlplane", "localhost", "nsml"} if of_node else name in _WORDS
