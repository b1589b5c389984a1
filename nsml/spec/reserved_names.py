"""Names that look like the platform's own: no user, project or node gets one."""

from __future__ import annotations

_WORDS = frozenset(
    {
        *("admin", "administrator", "anonymous", "controlplane", "everybody", "localhost"),
        *("nobody", "node", "none", "nsml", "operator", "platform", "root", "system", "user"),
    }
)
_PREFIXES = ("nsml-", "nsml_", "controlplane-", "controlplane_")


def is_reserved_for_platform(name: str, *, of_node: bool = False) -> bool:
    """Whether a new user, project or node may not be called this.

    A machine's name says nothing of what its owner may do, so of nodes only those names are
    reserved that certificates bear or that name another machine.
    """
    if name.startswith(_PREFIXES):
        return True
    return name in {"controlplane", "localhost", "nsml"} if of_node else name in _WORDS
