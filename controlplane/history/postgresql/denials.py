"""Whether an unusable PostgreSQL is unavailable, or denies us access.

libpq passes on no SQLSTATE of failed connections, so the message decides: the server's in English, or
libpq's. Unknown messages count as unavailable: waiting is harmless, and shows the message.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Final

_LOGIN: Final = (
    "look at user and password: best in a file as psql has it (?passfile=FILE, PGPASSFILE, "
    "~/.pgpass), mode 0600"
)
_DATABASE: Final = "make it (createdb --owner USER DATABASE), or name another one"
_RIGHTS: Final = "make the user of the URL the owner of the database (ALTER DATABASE ... OWNER TO)"
_ENTRY: Final = "let the user in from this host, in the server's pg_hba.conf"
_AUTHORITY: Final = (
    "name the authority of its certificate (?sslrootcert=FILE), and a host name that the "
    "certificate has"
)
_CERTIFICATE: Final = "give the connection a certificate that it knows (?sslcert=FILE&sslkey=FILE)"

_BY_CODE: Final = (("28", _LOGIN), ("3D000", _DATABASE), ("42501", _RIGHTS))

_BY_WORDS: Final = (
    (re.compile(r"authentication failed|no password supplied"), _LOGIN),
    (re.compile(r'role ".*" does not exist|is not permitted to log in'), _LOGIN),
    (re.compile(r'database ".*" does not exist'), _DATABASE),
    (re.compile(r"permission denied for database"), _RIGHTS),
    (re.compile(r"no pg_hba\.conf entry|pg_hba\.conf rejects"), _ENTRY),
    (re.compile(r"certificate verify failed|does not match host name"), _AUTHORITY),
    (re.compile(r"root certificate file|SSL, but SSL was required|wrong version"), _AUTHORITY),
    (re.compile(r"valid client certificate|SSL error: .*alert"), _CERTIFICATE),
    (re.compile(r"could not (load|read) .*(certificate|key file)|private key file"), _CERTIFICATE),
)

_ONE_OF_SEVERAL: Final = re.compile(r"^- (host: .*, port: .*), hostaddr: [^:]*: ", re.MULTILINE)


def denial(code: str, words: str) -> str:
    """Return advice if a server denies access; "" if it is unavailable, or not ready.

    Of several hosts all must deny: an unavailable one may still accept. Of the addresses of one host, one suffices.

    Args:
        code: the SQLSTATE, which decides; "" if there is none.
        words: psycopg's whole message.
    """
    if code:
        return next((advice for start, advice in _BY_CODE if code.startswith(start)), "")
    # The first piece repeats the last failure.
    _, *found = _ONE_OF_SEVERAL.split(words)
    if not found:
        return _advice(words)
    hosts: dict[str, list[str]] = defaultdict(list)
    for host, said in zip(found[::2], found[1::2], strict=True):
        hosts[host].append(_advice(said))
    denials = [next(filter(None, advice), "") for advice in hosts.values()]
    return denials[0] if all(denials) else ""


def _advice(words: str) -> str:
    return next((advice for pattern, advice in _BY_WORDS if pattern.search(words)), "")
