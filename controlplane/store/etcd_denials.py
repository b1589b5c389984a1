"""Whether an unanswering etcd is unavailable, or rejects us: by gRPC's error text for the connection."""

from __future__ import annotations

import re
from typing import Final

_ADVICE: Final = (
    (
        "WRONG_VERSION_NUMBER",
        "what listens there does not speak TLS: another port, or http:// on this machine",
    ),
    (
        "TSI_DATA_CORRUPTED",  # of an alert that ends a connection after its handshake
        "it takes another certificate than ours: etcd_certificate and etcd_key, nsml up --etcd-cert",
    ),
    (
        "Verification Check failed",
        "its certificate is another host's: write the URL with a name that the certificate has",
    ),
    (
        "SSL_ERROR_SSL",
        "name the authority that signed its certificate (etcd_ca, nsml up --etcd-ca FILE)",
    ),
)

_LAST_ERROR: Final = re.compile(
    r"^failed to connect to all addresses; last error: \w+: \w+:[^ ]+: "
)
_SILENT: Final = ("before receiving SETTINGS frame", "Handshake read failed", "Deadline Exceeded")


def denial(details: str) -> str:
    """Return advice if the server answers but it or its certificate is rejected; "" if it is unavailable.

    Args:
        details: error details of a call that did not wait for the connection.
    """
    return next((advice for words, advice in _ADVICE if words in details), "")


def reason(details: str) -> str:
    """Describe why a member does not answer, for people; `details` as for `denial`."""
    if any(words in details for words in _SILENT):
        return "it says nothing (one that starts waits for most of the cluster's members)"
    return _LAST_ERROR.sub("", details)
