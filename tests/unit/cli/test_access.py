import json
import os
import stat

import pytest

from cli.app import App
from cli.completion import names
from nsml.client.contexts import Context, load, save
from nsml.common.clock import SystemClock
from nsml.common.local_peers import FIRST_SESSION_UID
from nsml.v1 import resources_pb2
from tests.support.listeners import listening_as, needs_root
from tests.unit.cli.conftest import Stream
from tests.unit.nsml.client.contract_server import TOKEN


@pytest.fixture
def fresh(nsml):
    """A home without a platform."""
    for name in ("NSML_SERVER", "NSML_TOKEN_FILE"):
        nsml.environ.pop(name)
    return nsml


def test_login_keeps_what_works_and_logout_forgets_it(fresh, server, home):
    result = fresh("login", server.address, "--token-stdin", stdin=TOKEN + "\n")
    assert "Welcome to NSML! You are kim" in result.stdout
    token = home / "tokens" / "127.0.0.1"
    assert token.read_text() == TOKEN + "\n"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert [path.name for path in token.parent.iterdir()] == ["127.0.0.1"]
    assert fresh("context", "ls", "-o", "name").stdout == "127.0.0.1\n"
    fresh("ps")
    fresh("logout")
    assert not token.exists()
    assert TOKEN in server.state.tokens
    again = fresh("logout", check=False)
    assert (again.code, "not logged in at 127.0.0.1" in again.stderr) == (4, True), again.stderr


def test_logout_revokes_the_token_where_that_is_asked_for(fresh, server):
    fresh("login", server.address, "--token-stdin", stdin=TOKEN + "\n")
    assert "the token is revoked" in fresh("logout", "--revoke").stderr
    assert TOKEN not in server.state.tokens


def test_logout_without_a_login_says_so(fresh):
    result = fresh("logout", check=False)
    assert (result.code, result.stderr) == (
        4,
        "error: not logged in: no platform is known on this machine\n",
    )


def test_logout_leaves_a_file_that_login_did_not_make(fresh, server, home, environ):
    fresh("login", server.address, "--token-stdin", stdin=TOKEN + "\n")
    own = {"NSML_TOKEN_FILE": str(home / "token")}
    result = fresh("logout", check=False, **own)
    assert (result.code, "unset NSML_TOKEN_FILE" in result.stderr) == (6, True)
    config = load(fresh.environ)
    save(
        config.with_context(
            config.contexts["127.0.0.1"]._replace(token_file=own["NSML_TOKEN_FILE"])
        )
    )
    fresh("logout")
    assert (home / "token").exists()
    assert "not logged in" in fresh("ps", check=False).stderr


def test_a_token_that_does_not_work_leaves_nothing(fresh, server, home):
    result = fresh("login", server.address, "--token-stdin", stdin="wrong\n", check=False)
    assert result.code == 4
    assert "wrong" not in result.stderr
    assert [path.name for path in home.iterdir()] == ["token"]


def test_a_login_that_fails_makes_no_folder(fresh, server, home, tmp_path):
    folder = tmp_path / "config"
    fresh.environ["NSML_CONFIG_DIR"] = str(folder)
    result = fresh("login", server.address, "--token-stdin", stdin="wrong\n", check=False)
    assert (result.code, folder.exists()) == (4, False)


def test_nobody_to_ask_for_a_token(fresh, server):
    result = fresh("login", server.address, check=False)
    assert result.code == 2
    assert "--token-stdin" in result.stderr


def test_the_context_that_commands_use_is_marked(fresh, server):
    for name in ("lab", "home"):
        fresh("login", server.address, "--context", name, "--token-stdin", stdin=TOKEN + "\n")

    def marked(*words, **environ):
        lines = fresh("context", "ls", *words, **environ).stdout.splitlines()
        assert lines[0].split() == ["Current", "Name", "Server"]
        return [line.split()[1] for line in lines if line.startswith("*")]

    assert marked() == ["home"]
    assert marked(NSML_CONTEXT="lab") == marked("--context", "lab") == ["lab"]
    told = fresh("context", "ls", NSML_SERVER="gpu.lab:1").stderr
    assert told == "NSML_SERVER is set: commands go to gpu.lab:1\n"


def test_where_no_context_is_current_those_that_are_known_are_named(fresh, server, home):
    fresh("login", server.address, "--context", "lab", "--token-stdin", stdin=TOKEN + "\n")
    file = home / "config.toml"
    file.write_text(file.read_text().replace('current = "lab"', 'current = ""'))
    shown = fresh("context", "ls")
    assert "*" not in shown.stdout
    assert shown.stderr == "none of them is current: nsml context use NAME\n"
    assert "  try: nsml context use lab\n" in fresh("ps", check=False).stderr


def test_contexts_and_settings(fresh):
    fresh("config", "set", "contexts.a.server", "gpu.a")
    fresh("config", "set", "contexts.b.server", "gpu.b:9")
    fresh("config", "set", "contexts.b.ca", "/ca.pem")
    assert fresh("config", "get").stdout == (
        "current = a\ncontexts.a.server = gpu.a:18553\n"
        "contexts.b.server = gpu.b:9\ncontexts.b.ca = /ca.pem\n"
    )
    fresh("context", "use", "b")
    assert fresh("config", "get", "current").stdout == "b\n"
    found = json.loads(fresh("context", "ls", "-j").stdout)["items"]
    assert [(item["name"], item["current"]) for item in found] == [("a", False), ("b", True)]
    assert fresh("config", "get", "output", check=False).code == 5
    fresh("config", "set", "output", "json")
    assert json.loads(fresh("context", "ls").stdout)["items"]
    assert fresh("config", "get", "theme", check=False).code == 5
    fresh("config", "set", "theme", "light")
    assert fresh("config", "get", "theme").stdout == "light\n"
    fresh("config", "set", "theme", "")
    assert fresh("config", "get", "theme", check=False).code == 5
    assert fresh("config", "path").stdout.endswith("config.toml\n")


def test_another_authority_takes_the_old_ones_name_away(nsml, home):
    (home / "config.toml").write_text(
        '[contexts.lab]\nserver = "gpu.lab:18553"\nca = "/old.pem"\nserver_name = "nsml"\n'
    )
    nsml("config", "set", "contexts.lab.ca", "/new.pem")
    changed = load(nsml.environ).contexts["lab"]
    assert (str(changed.ca), changed.server_name) == ("/new.pem", "")


def test_where_else_a_platform_is_needs_no_place_to_be_kept_in(fresh, home, monkeypatch):
    def refuse(*_):
        raise PermissionError(30, "Read-only file system")

    app = App(environ=fresh.environ, stdout=Stream(), stderr=Stream(), stdin=Stream())
    app.save(app.config.with_context(Context(name="lab", server="a:1", ca="/ca.pem")))
    with monkeypatch.context() as patched:
        patched.setattr("nsml.client.contexts.write_private", refuse)
        app.remember_servers(["a:1", "b:1"])
        assert app.context.servers == ("a:1",)
    app.remember_servers(["a:1", "b:1"])
    assert load(fresh.environ).contexts["lab"].servers == app.context.servers == ("a:1", "b:1")


def test_the_output_variable(nsml, everything):
    assert nsml("ps", NSML_OUTPUT="name").stdout == "kim/mnist/1\n"
    assert nsml("ps", NSML_OUTPUT="xml", check=False).code == 2


def test_users_and_tokens(nsml, state):
    nsml("admin", "user", "add", "lee", "--team", "vision")
    shown = nsml("admin", "user", "ls", "-o", "csv", "--fields", "name,role,team").stdout
    assert shown == "name,role,team\nkim,ADMIN,\nlee,MEMBER,vision\n"
    result = nsml("admin", "user", "token", "lee", "--valid-for", "90d")
    assert result.stdout == "token-of-lee\n"
    assert "token-of-lee" not in result.stderr
    nsml("admin", "user", "token", "lee", "--revoke", "-y")
    assert "lee" not in state.tokens.values()
    removed = nsml("admin", "user", "rm", "lee", "-y").stderr
    assert "to end what still runs: nsml stop --user lee '*'" in removed
    assert set(state.users) == {"kim"}


def test_a_users_token_comes_with_the_line_that_uses_it(nsml, state, server):
    result = nsml("admin", "user", "token", "lee")
    assert f"asks for the token:  nsml login {server.address}\n" in result.stderr
    state.login_address = "gpu.lab:18600#" + "0" * 64
    result = nsml("admin", "user", "token", "lee")
    assert result.stdout == "token-of-lee\n"
    assert f"asks for the token:  nsml login {state.login_address}\n" in result.stderr
    told = json.loads(nsml("admin", "user", "token", "lee", "-j").stdout)
    assert told["address"] == state.login_address


def test_a_join_token_comes_with_the_line_that_uses_it(nsml, state):
    result = nsml("admin", "join-token")
    assert result.stdout == "SECRET.DIGEST\n"
    assert "nsml up --listen 0.0.0.0:18553" in result.stderr
    assert "nsml join" not in result.stderr
    state.join_address = "gpu.lab:18600"
    result = nsml("admin", "join-token")
    assert result.stdout == "SECRET.DIGEST\n"
    assert "nsml join gpu.lab:18600\n" in result.stderr
    assert "SECRET" not in result.stderr
    pasted = nsml("admin", "join-token", terminal=True).stderr
    assert "nsml join gpu.lab:18600\n" in pasted
    assert "SECRET" not in pasted, "in a command line everybody on that machine could see it"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(nsml, shell):
    assert "_NSML_COMPLETE" in nsml("completion", shell).stdout


def test_names_are_completed_and_cached_for_seconds(nsml, home, everything, state, monkeypatch):
    monkeypatch.setattr("cli.completion._PATIENCE_S", 60.0)
    monkeypatch.setattr("cli.completion._FRESH_S", 600.0)
    state.nodes[0].isolation = resources_pb2.ISOLATION_CONTAINER
    state.datasets[0].tags.append("gold")
    app = App(environ=nsml.environ, given_clock=SystemClock())
    assert [item.value for item in names(app, "dataset", "mnist@")] == ["mnist@gold"]
    assert [item.value for item in names(app, "session", "kim/")] == ["kim/mnist/1"]
    assert [item.value for item in names(app, "dataset", "")] == ["mnist"]
    assert [item.value for item in names(app, "model", "")] == ["Simulated-GPU"]
    assert [item.value for item in names(app, "pod", "p")] == ["p1"]
    assert [item.value for item in names(app, "image", "lab/")] == ["lab/torch:2"]
    assert state.calls.count("ListSessions") == 1
    [cached] = (home / "cache" / "nsml").iterdir()
    os.utime(cached, (0, 0))
    assert names(app, "session", "kim/")
    assert state.calls.count("ListSessions") == 2
    dead = App(
        environ={**nsml.environ, "NSML_SERVER": "127.0.0.1:1", "XDG_CACHE_HOME": "/proc/nowhere"}
    )
    assert names(dead, "session", "") == []


@needs_root
def test_login_trusts_the_account_that_serves_without_tls_and_no_other(fresh, server, home):
    words = ("login", server.address, "--token-stdin")
    given = {"stdin": TOKEN + "\n"}
    with listening_as(server.port, FIRST_SESSION_UID + 5):
        result = fresh(*words, "-y", check=False, **given)
        assert (result.code, f"uid {FIRST_SESSION_UID + 5}" in result.stderr) == (1, True)
    with listening_as(server.port, 54_321):
        assert fresh(*words, check=False, **given).code != 0
        assert not (home / "config.toml").exists()
        assert "uid 54321" in fresh(*words, "-y", **given).stderr
        fresh("ps")
        fresh(*words, **given)  # it is known now
    with listening_as(server.port, 54_322):
        result = fresh("ps", check=False)
        assert (result.code, "uid 54322" in result.stderr) == (4, True)
    with listening_as(server.port, 998):
        assert "uid 998" in fresh(*words, **given).stderr
        fresh("ps")
    context = load({"NSML_CONFIG_DIR": str(home)}).contexts["127.0.0.1"]
    assert context.server_uid == 998
    fresh(*words, **given)
    assert load({"NSML_CONFIG_DIR": str(home)}).contexts["127.0.0.1"].server_uid is None
