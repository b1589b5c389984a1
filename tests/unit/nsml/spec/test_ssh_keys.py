"""Which public keys are accepted, and what is said of everything else."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from nsml.spec.ssh_keys import NotAPublicKey, digest_of, is_name, parse_public_key

if TYPE_CHECKING:
    from pathlib import Path


def field(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def line(kind: str, *fields: bytes, comment: str = "") -> str:
    blob = b"".join(map(field, (kind.encode(), *fields)))
    return f"{kind} {base64.b64encode(blob).decode()} {comment}".strip()


def number(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big")


ED25519 = ed25519.Ed25519PrivateKey.generate().public_key().public_bytes_raw()
CURVES = {256: ec.SECP256R1(), 384: ec.SECP384R1(), 521: ec.SECP521R1()}
POINTS = {
    bits: ec.generate_private_key(curve)
    .public_key()
    .public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    for bits, curve in CURVES.items()
}
MODULUS = 3**1938
"""Of 3072 bits, and odd. To make the primes of a key takes half a second."""
GOOD = {
    "ed25519": line("ssh-ed25519", ED25519),
    **{
        f"ecdsa-{bits}": line(f"ecdsa-sha2-nistp{bits}", f"nistp{bits}".encode(), point)
        for bits, point in POINTS.items()
    },
    "sk-ed25519": line("sk-ssh-ed25519@openssh.com", ED25519, b"ssh:"),
    "sk-ecdsa": line("sk-ecdsa-sha2-nistp256@openssh.com", b"nistp256", POINTS[256], b"ssh:"),
    "rsa": line("ssh-rsa", number(65537), number(MODULUS)),
}
KEY = GOOD["ed25519"]
PRIVATE = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1r\n-----END OPENSSH PRIVATE KEY-----\n"


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_each_accepted_type_is_read_with_and_without_a_comment(text: str) -> None:
    key = parse_public_key(f"{text} kim@laptop \r\n")
    blob = base64.b64decode(text.split()[1])
    assert (key.text, key.comment, key.usual_name) == (text, "kim@laptop", "kim@laptop")
    assert key.digest == hashlib.sha256(blob).hexdigest() == digest_of(blob)
    nameless = parse_public_key(text).usual_name
    assert is_name(nameless)
    assert nameless.endswith(key.digest[:8])


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="there is no ssh-keygen")
def test_fingerprints_are_those_of_openssh(tmp_path: Path) -> None:
    file = tmp_path / "key.pub"
    for text in GOOD.values():
        file.write_text(f"{text}\n")
        said = subprocess.run(
            ["ssh-keygen", "-lf", str(file)], capture_output=True, text=True, check=True
        )
        assert said.stdout.split()[1] == parse_public_key(text).fingerprint


BAD = {
    "nothing": ("", "there is no public key"),
    "private": (PRIVATE, "this is a private key"),
    "putty": ("---- BEGIN SSH2 PUBLIC KEY ----\nAAAA\n", "in the format of PuTTY"),
    "two": (f"{KEY}\n{KEY}\n", "more than one line"),
    "options": (f'command="ls" {KEY}', "this is no public key"),
    "restricted": (f"no-pty {KEY}", "this is no public key"),
    "certificate": (KEY.replace("ssh-ed25519", "ssh-ed25519-cert-v01@openssh.com"), "certificate"),
    "dsa": (line("ssh-dss", b"x"), "DSA keys are not accepted"),
    "escapes": (f"{KEY} \x1b[2J", "this is no public key"),
    "long": (f"{KEY} {'x' * 5000}", "too long"),
    "type alone": ("ssh-ed25519", "damaged"),
    "no base64": ("ssh-ed25519 !!!!", "damaged"),
    "another inside": (f"ssh-rsa {KEY.split()[1]}", "damaged"),
    "cut": (line("ssh-ed25519", ED25519[:-1]), "damaged"),
    "more behind": (line("ssh-ed25519", ED25519, b""), "damaged"),
    "no application": (line("sk-ssh-ed25519@openssh.com", ED25519, b""), "damaged"),
    "off the curve": (line("ecdsa-sha2-nistp256", b"nistp256", b"\x04" + b"\x01" * 64), "damaged"),
    "another curve": (line("ecdsa-sha2-nistp256", b"nistp384", POINTS[384]), "damaged"),
    "weak": (line("ssh-rsa", number(65537), number(MODULUS >> 1 | 1)), "has 3071 bits"),
    "even": (line("ssh-rsa", number(65537), number(MODULUS - 1)), "damaged"),
    "exponent": (line("ssh-rsa", number(1), number(MODULUS)), "damaged"),
    "written longer": (line("ssh-rsa", number(65537), b"\0" + number(MODULUS)), "damaged"),
    "negative": (line("ssh-rsa", number(65537), number(MODULUS)[1:]), "damaged"),
}


@pytest.mark.parametrize(("text", "said"), BAD.values(), ids=BAD)
def test_everything_else_is_refused_with_a_reason(text: str, said: str) -> None:
    with pytest.raises(NotAPublicKey, match=said):
        parse_public_key(text)


@given(st.binary(max_size=200), st.sampled_from(sorted(GOOD)))
def test_any_bytes_are_a_key_or_are_refused(data: bytes, name: str) -> None:
    kind = GOOD[name].split()[0]
    text = f"{kind} {base64.b64encode(field(kind.encode()) + data).decode()}"
    with contextlib.suppress(NotAPublicKey):
        assert parse_public_key(text).text == text
