"""Names of the platform as names of folders."""

from __future__ import annotations


def folder_name(name: str) -> str:
    """A name, which may be any text, as the name of one folder."""
    from urllib.parse import quote  # noqa: PLC0415 - `nsml ps` pays for nothing that it does not use

    quoted = quote(name, safe=" !#$&'()+,;=@[]^`{}~")
    return quoted.replace(".", "%2E") if set(quoted) <= {"."} else quoted
