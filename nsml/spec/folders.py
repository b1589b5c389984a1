"""Names of the platform as names of folders and files.

Names come from a server, which need not mean well: whatever they are, nothing is written outside of the folder that was meant.
"""

from __future__ import annotations


def folder_name(name: str) -> str:
    """A name, which may be any text, as the name of one folder: no way up, no NUL, no flag of a command."""
    from urllib.parse import quote  # noqa: PLC0415 - `nsml ps` pays for nothing that it does not use

    # Half of a surrogate pair cannot be written, and cannot be sent either.
    quoted = quote(name, safe=" !#$&'()+,;=@[]^`{}~", errors="replace")
    if set(quoted) <= {"."}:
        return quoted.replace(".", "%2E") or "%00"
    return f"%2D{quoted[1:]}" if quoted.startswith("-") else quoted


def session_folder(name: str) -> str:
    """The folder for what is fetched of the session of this full name: USER_DATASET_N."""
    return folder_name(name.replace("/", "_"))


def is_one_name(name: str) -> bool:
    """Whether a text names one thing inside a folder as it is: of names that a program finds its files by."""
    return name.isprintable() and "/" not in name and name not in {"", ".", ".."} and name[0] != "-"
