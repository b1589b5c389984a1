"""key: public keys go to the account, private ones nowhere."""

import pytest

from tests.unit.nsml.client.contract_server import LAPTOP

PRIVATE = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1r\n-----END OPENSSH PRIVATE KEY-----\n"


def test_a_key_is_added_listed_and_removed(nsml, state, tmp_path):
    file = tmp_path / "id.pub"
    file.write_text(f"{LAPTOP}\n")
    added = nsml("key", "add", str(file))
    assert added.stdout.startswith("key laptop added (SHA256:")
    assert "nsml ssh-config --jump" in added.stderr
    listed = nsml("key", "ls")
    assert "laptop" in listed.stdout
    assert "never" in listed.stdout
    nsml("key", "rm", "laptop", "-y")
    assert state.keys == {}
    assert "no keys: nsml key add" in nsml("key", "ls").stderr


def test_from_stdin_with_a_name(nsml, state):
    nsml("key", "add", "-", "--name", "desk", stdin=f"{LAPTOP}\n")
    assert list(state.keys) == ["desk"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (PRIVATE, "this is a private key"),
        (f"no-pty {LAPTOP}", "options before it are not accepted"),
        ("", "ssh-keygen -t ed25519"),
    ],
)
def test_what_is_no_public_key_is_not_sent(nsml, state, given, said):
    before = len(state.calls)
    refused = nsml("key", "add", "-", stdin=given, check=False)
    assert (refused.code, state.keys, len(state.calls)) == (2, {}, before)
    assert said in refused.stderr


def test_a_file_that_is_not_there(nsml):
    missing = nsml("key", "add", "no-such.pub", check=False)
    assert missing.code == 2
    assert "No such file" in missing.stderr
    assert "ls ~/.ssh/*.pub" in missing.stderr


def test_a_key_that_is_not_there_is_not_asked_for(nsml):
    missing = nsml("key", "rm", "nowhere", check=False)
    assert missing.code == 5
