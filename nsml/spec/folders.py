"""Names of the platform as names of folders and files.

Names come from a server, which may be malicious: whatever they are, nothing is written outside of the intended folder.
"""

from __future__ import annotations


def folder_name(name: str) -> str:
    """Encode a name, which may be any text, as the name of one folder: no path, no NUL, no option of a command."""
    from urllib.parse import quote  # noqa: PLC0415 - `nsml ps` pays for nothing that it does not use

    # A lone surrogate cannot be written or sent.
    quoted = quote(name, safe=" !#$&'()+,;=@[]^`{}~", errors="replace")
    if set(quoted) <= {"."}:
        return quoted.replace(".", "%2E") or "%00"
    return f"%2D{quoted[1:]}" if quoted.startswith("-") else quoted


def session_folder(name: str) -> str:
    """Return the download folder of a session by its full name: USER_DATASET_N."""
    return folder_name(name.replace("/", "_"))


def is_one_name(name: str) -> bool:
    """Return whether a text is usable unchanged as a single file name, for names by which programs find their files."""
    return name.isprintable() and "/" not in name and name not in {"", ".", ".."} and name[0] != "-"
