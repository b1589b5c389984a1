"""image login, logout, logins: passwords come in unseen and are told nowhere."""

import pytest

MARK = "s3cret-7f1c"


@pytest.mark.parametrize("given", [MARK, f"{MARK}\n", f"{MARK}\r\n"])
def test_a_login_is_read_from_stdin(nsml, state, given):
    result = nsml("image", "login", "ghcr.io", "-u", "kim", "--password-stdin", stdin=given)
    assert state.logins["ghcr.io"] == ("kim", MARK.encode())
    assert result.stdout == "login at ghcr.io set (user kim)\n"
    assert MARK not in result.stdout + result.stderr


def test_a_password_is_never_a_word_of_the_command_line(nsml, state):
    for words in (["-p", MARK], ["--password", MARK], [MARK]):
        assert nsml("image", "login", "ghcr.io", "-u", "kim", *words, check=False).code == 2
    nothing = nsml("image", "login", "ghcr.io", "-u", "kim", "--password-stdin", check=False)
    assert (nothing.code, "ghcr.io" in state.logins) == (2, False)
    unasked = nsml("image", "login", "ghcr.io", "-u", "kim", check=False)
    assert unasked.code == 2
    assert "--password-stdin < FILE" in unasked.stderr


def test_logins_are_listed_without_passwords_and_removed(nsml, state):
    listed = nsml("image", "logins", "-j").stdout
    assert '"registry_user":"kim"' in listed.replace(" ", "")
    assert "s3cret" not in listed
    nsml("image", "logout", "docker.io")
    assert state.logins == {}
    assert nsml("image", "logout", "docker.io", check=False).code == 5
