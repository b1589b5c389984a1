import random
import stat
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml.client import contexts
from nsml.client.contexts import Config, Context, ContextError


@pytest.fixture
def environ(tmp_path):
    return {"NSML_CONFIG_DIR": str(tmp_path / "config")}


def test_what_is_saved_is_loaded(environ):
    config = Config(folder=contexts.config_folder(environ), settings={"output": "wide"})
    lab = Context(name="lab", server="gpu.lab:1", ca='/a "b"\\c', token_file="/t")
    lab = lab._replace(server_name="nsml-controlplane", others=("gpu2.lab:1", "gpu3.lab:1"))
    config = config.with_context(Context(name="default", server="127.0.0.1:2")).with_context(lab)
    contexts.save(config)
    assert contexts.load(environ) == config
    assert stat.S_IMODE(Path(config.file).stat().st_mode) == 0o600
    assert [item.name for item in Path(config.folder).iterdir()] == ["config.toml"]


def test_an_older_client_finds_the_first_of_several_servers(environ):
    several = Context(name="lab", server="a:1", others=("b:1",))
    config = Config(folder=contexts.config_folder(environ)).with_context(several)
    contexts.save(config)
    written = tomllib.loads(Path(config.file).read_text())["contexts"]["lab"]
    assert written == {"server": "a:1", "servers": ["a:1", "b:1"]}


def test_the_environment_names_several_servers():
    lab = Context(name="lab", server="a:1", others=("b:1",), token_file="/t")
    config = Config(folder="/x").with_context(lab)
    for said, servers, token_file in (
        ("b:1, a:1", ("b:1", "a:1"), "/t"),
        ("b:1", ("b:1",), "/t"),
        ("a:1,elsewhere:1", ("a:1", "elsewhere:1"), ""),  # a token goes to its platform alone
        ("unix:/run/a,b", ("unix:/run/a,b",), ""),
        (" ,", ("a:1", "b:1"), "/t"),
    ):
        chosen = contexts.choose(config, {"NSML_SERVER": said})
        assert (chosen.servers, chosen.token_file) == (servers, token_file)
    assert contexts.choose(Config(folder="/x"), {"NSML_SERVER": "a:1,b:1"}).servers == (
        "a:1",
        "b:1",
    )


@given(
    known=st.lists(st.sampled_from("abcdefghijkl"), min_size=1, max_size=9, unique=True),
    told=st.lists(st.sampled_from("abcdefghijkl"), unique=True),
    seed=st.integers(0, 9),
)
def test_what_is_told_comes_before_what_is_gone(known, told, seed):
    servers = contexts.known_servers(known, told, random.Random(seed))
    assert servers[0] == known[0]
    assert len(servers) == len(set(servers)) == min(len({*known, *told}), contexts.MOST_SERVERS)
    gone = [one in told for one in servers[1:]]
    assert gone == sorted(gone, reverse=True)
    assert (
        contexts.known_servers(servers, told, random.Random(seed)) == servers
        or len({*known, *told}) > contexts.MOST_SERVERS
    )


@given(text=st.text(st.characters(codec="utf-8"), max_size=40))
def test_any_text_survives_as_toml(text):
    assert tomllib.loads(f"a = {contexts._quoted(text)}") == {"a": text}


def test_nothing_chosen_says_what_to_do(environ):
    with pytest.raises(ContextError) as caught:
        contexts.choose(contexts.load(environ), environ)
    assert "nsml up" in caught.value.advice


def test_the_flag_wins_over_the_environment_over_the_file(environ):
    config = Config(folder="/x")
    for name in ("a", "b", "c"):
        config = config.with_context(Context(name=name, server=f"{name}:1"))
    environ["NSML_CONTEXT"] = "b"
    assert contexts.choose(config, {}).name == "c"
    assert contexts.choose(config, environ).name == "b"
    assert contexts.choose(config, environ, "a").name == "a"
    with pytest.raises(ContextError, match="known: a, b, c"):
        contexts.choose(config, {}, "d")


@pytest.mark.parametrize("server", ["gpu.lab:18553", "127.0.0.1:1", "[::1]:65535"])
def test_a_server_is_split_and_put_together(server):
    host, port = contexts.split_server(contexts.parse_server(server))
    assert not host.startswith("[")
    assert contexts.server_at(host, port) == server


def test_a_token_never_goes_to_another_server():
    kept = Context(name="a", server="a:1", token_file="/token")
    config = Config(folder="/x").with_context(kept)
    assert contexts.choose(config, {"NSML_SERVER": "evil:1"}).token_file == ""
    assert contexts.choose(config, {"NSML_SERVER": "a:1"}).token_file == "/token"
    both = {"NSML_SERVER": "b:1", "NSML_TOKEN_FILE": "/other"}
    assert contexts.choose(config, both).token_file == "/other"


@pytest.mark.parametrize(
    "text",
    [
        "current = ",
        "current = 5",
        "[contexts.a]\nserver = 3\n",
        "contexts = {a = 1}",
        "contexts = 5",
        'contexts = "ab"',
        '[contexts.a]\nserver = "a:1"\nca = 5\n',
        '[contexts.a]\nserver = "a:1"\ntoken_file = ["x"]\n',
        "settings = 5",
        "[settings]\noutput = 5\n",
        f"current = {'9' * 5_000}",
        f"current = {'[' * 5_000}",
    ],
)
def test_a_broken_file_is_told(environ, text):
    folder = Path(contexts.config_folder(environ))
    folder.mkdir()
    (folder / "config.toml").write_text(text)
    with pytest.raises(ContextError, match=r"config\.toml"):
        contexts.load(environ)


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("gpu.lab", "gpu.lab:18553"),
        ("gpu.lab:99", "gpu.lab:99"),
        ("https://gpu.lab/", "gpu.lab:18553"),
        ("[::1]:7", "[::1]:7"),
        ("unix:/run/nsml", "unix:/run/nsml"),
    ],
)
def test_servers(text, server):
    assert contexts.parse_server(text) == server


@pytest.mark.parametrize("text", ["", "a b", "host:99999", "host:port", "-h/x"])
def test_no_servers(text):
    with pytest.raises(ContextError):
        contexts.parse_server(text)


@pytest.mark.parametrize(
    ("server", "is_local"),
    [
        ("127.0.0.1:1", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("unix:/x", True),
        ("127.0.0.1.evil.org:1", False),
        ("0.0.0.0:1", False),
        ("10.0.0.1:1", False),
    ],
)
def test_only_loopback_is_local(server, is_local):
    assert contexts.is_local(server) is is_local


@pytest.mark.parametrize("name", ["../x", "", ".hidden", "a/b"])
def test_names_that_would_be_paths_are_refused(name):
    with pytest.raises(ContextError):
        contexts.check_name(name)
