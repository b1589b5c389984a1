"""Whether a PostgreSQL that cannot be used is away, or denies us.

libpq hands on no SQLSTATE of a connection that was not made, so that its words decide there: of the
server in English, or of libpq. What says nothing that is known here counts as away: waiting changes
nothing, and shows the words.
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
    """What to try where a server is there and denies us; "" while it is away, or busy with itself.

    Of several hosts one that is only away may yet let us in. Of the addresses of one host, none will.

    Args:
        code: the SQLSTATE, which decides; "" where there is none.
        words: all that psycopg says.
    """
    if code:
        return next((advice for start, advice in _BY_CODE if code.startswith(start)), "")
    # What comes first is the last failure once more.
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
