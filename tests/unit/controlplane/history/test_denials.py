"""What PostgreSQL and libpq say of servers that are away, and of servers that deny us."""

from __future__ import annotations

import pytest

from controlplane.history.postgresql.denials import denial

_AT = 'connection failed: connection to server at "127.0.0.1", port 5432 failed: '
_REFUSED = _AT + (
    "Connection refused\n\tIs the server running on that host and accepting TCP/IP connections?"
)
_PASSWORD = _AT + 'FATAL:  password authentication failed for user "nsml"'


def several(*failures: tuple[str, str, str]) -> str:
    """Host, address and failure, as psycopg tells of several attempts."""
    told = [
        f"- host: {host!r}, port: '5432', hostaddr: {at!r}: {said}" for host, at, said in failures
    ]
    heading = "Multiple connection attempts failed. All failures were:"
    return "\n".join([failures[-1][2], heading, *told])


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("", _REFUSED),
        ("", _AT + "No route to host\n\tIs the server running on that host?"),
        ("", _AT + "server closed the connection unexpectedly\n\tThis probably means the server"),
        ("", _AT + "SSL SYSCALL error: EOF detected"),
        ("", _AT + "SSL error: unexpected eof while reading"),
        ("", _AT + "FATAL:  the database system is starting up"),
        ("", _AT + "FATAL:  the database system is shutting down"),
        ("", _AT + "FATAL:  the database system is not yet accepting connections"),
        ("", _AT + "FATAL:  sorry, too many clients already"),
        ("", _AT + 'FATAL:  too many connections for role "nsml"'),
        ("", _AT + "session is read-only"),
        (
            "",
            (
                'connection is bad: connection to server on socket "/run/postgresql/.s.PGSQL.5432" failed: No '
                "such file or directory\n\tIs the server running locally and accepting connections?"
            ),
        ),
        ("", "failed to resolve host 'db.lab': [Errno -2] Name or service not known"),
        ("", "failed to resolve host 'db.lab': [Errno -3] Temporary failure in name resolution"),
        ("", "connection timeout expired"),
        ("", "consuming input failed: server closed the connection unexpectedly"),
        ("57P01", "terminating connection due to administrator command"),
        ("57P03", "the database system is starting up"),
        ("53300", "sorry, too many clients already"),
        ("25006", "cannot execute CREATE TABLE in a read-only transaction"),
        ("42P01", 'relation "x" does not exist'),
        ("", several(("a", "10.0.0.1", _REFUSED), ("b", "10.0.0.2", _PASSWORD))),
        ("", several(("a", "10.0.0.1", _PASSWORD), ("b", "10.0.0.2", _REFUSED))),
    ],
)
def test_away(code: str, words: str) -> None:
    assert not denial(code, words)


@pytest.mark.parametrize(
    ("code", "words", "advice"),
    [
        ("", _PASSWORD, "passfile"),
        ("", _AT + "fe_sendauth: no password supplied", "passfile"),
        ("", _AT + 'FATAL:  role "nsml" does not exist', "user"),
        ("", _AT + 'FATAL:  role "nsml" is not permitted to log in', "user"),
        ("", _AT + 'FATAL:  database "nsml" does not exist', "createdb"),
        (
            "",
            _AT
            + 'FATAL:  permission denied for database "nsml"\nDETAIL:  User does not have CONNECT '
            "privilege.",
            "owner",
        ),
        (
            "",
            _AT
            + 'FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "nsml", database "nsml", no '
            "encryption",
            "pg_hba.conf",
        ),
        ("", _AT + "SSL error: certificate verify failed", "sslrootcert"),
        ("", _AT + 'server certificate for "db" does not match host name "db.lab"', "host name"),
        (
            "",
            _AT + 'root certificate file "/x" does not exist\nEither provide the file',
            "sslrootcert",
        ),
        ("", _AT + "server does not support SSL, but SSL was required", "sslrootcert"),
        ("", _AT + "SSL error: tlsv13 alert certificate required", "sslcert"),
        ("", _AT + "FATAL:  connection requires a valid client certificate", "sslcert"),
        ("28P01", "Passwort-Authentifizierung fehlgeschlagen", "password"),
        ("28000", "x", "user"),
        ("3D000", "x", "createdb"),
        ("42501", "permission denied for schema public", "owner"),
        ("", several(("db", "::1", _REFUSED), ("db", "127.0.0.1", _PASSWORD)), "passfile"),
        ("", several(("a", "10.0.0.1", _PASSWORD), ("b", "10.0.0.2", _PASSWORD)), "passfile"),
    ],
)
def test_denied(code: str, words: str, advice: str) -> None:
    assert advice in denial(code, words)
