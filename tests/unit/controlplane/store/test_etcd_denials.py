"""What gRPC says of etcds that are away, and of etcds that deny us: as version 1.85 words it."""

from __future__ import annotations

import pytest

from controlplane.store.etcd_denials import denial, reason

_TO = "failed to connect to all addresses; last error: "
_TLS = (
    _TO + "UNKNOWN: ipv4:127.0.0.1:1: Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: "
)


@pytest.mark.parametrize(
    "details",
    [
        _TO + "UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to remote host: Connection refused",
        _TO + "UNKNOWN: ipv4:192.0.2.1:1: Failed to connect to remote host: No route to host",
        _TO + "UNAVAILABLE: ipv4:127.0.0.1:1: Handshake read failed (Endpoint closing)",
        _TO
        + "UNKNOWN: ipv4:127.0.0.1:1: connection attempt timed out before receiving SETTINGS frame",
        _TO + "UNAVAILABLE: ipv4:127.0.0.1:1: Socket closed",
        (
            "errors resolving nope.invalid:2379: [field:hostname lookup error:address lookup failed for "
            "nope.invalid:2379: Domain name not found]"
        ),
        "Deadline Exceeded",
        "it has no leader: too few of the cluster's members run",
        "etcdserver: request timed out",
        "",
    ],
)
def test_away(details: str) -> None:
    assert not denial(details)


@pytest.mark.parametrize(
    ("details", "advice"),
    [
        (
            _TLS
            + "error:1000007d:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: unable to get "
            "local issuer certificate: OK",
            "etcd_ca",
        ),
        (
            _TLS + "error:100000f7:SSL routines:OPENSSL_internal:WRONG_VERSION_NUMBER: Invalid "
            "certificate verification context: OK",
            "does not speak TLS",
        ),
        (
            _TO + "UNKNOWN: ipv4:127.0.0.1:1: Custom verification check failed with error: "
            "UNAUTHENTICATED: Hostname Verification Check failed.",
            "a name that the certificate has",
        ),
        (
            _TO + "UNAVAILABLE: ipv4:127.0.0.1:1: Unwrap failed (TSI_DATA_CORRUPTED)",
            "etcd_certificate",
        ),
    ],
)
def test_denied(details: str, advice: str) -> None:
    assert advice in denial(details)


@pytest.mark.parametrize(
    ("details", "told"),
    [
        (
            _TO + "UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to remote host: Connection refused",
            "Failed to connect to remote host: Connection refused",
        ),
        (
            _TO + "UNKNOWN: ipv6:%5B::1%5D:1: Failed to connect to remote host: Connection refused",
            "Failed to connect to remote host: Connection refused",
        ),
        (
            _TO
            + "UNKNOWN: ipv4:127.0.0.1:1: connection attempt timed out before receiving SETTINGS frame",
            "it says nothing (one that starts waits for most of the cluster's members)",
        ),
        (
            "it has no leader: too few of the cluster's members run",
            "it has no leader: too few of the cluster's members run",
        ),
    ],
)
def test_reasons_are_for_people(details: str, told: str) -> None:
    assert reason(details) == told
