"""config: the settings in config.toml."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.app import App, Format
from cli.exits import CommandError, ExitCode
from cli.group import Group, command, near, pass_app, to_try
from nsml.client import contexts
from nsml.common.shell import shell_word
from nsml.view.themes import SETTING, STYLE_SETTING, STYLES, THEMES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsml.client.contexts import Config

_CONTEXT_KEYS = ("server", "ca", "token_file")
_CHOICES: Mapping[str, tuple[str, Sequence[str]]] = {
    "output": ("an output format", tuple(Format)),
    STYLE_SETTING: ("a style", STYLES),
    SETTING: ("a theme", THEMES),
}
"""Settings with a choice of values, and what a value is called."""


@click.group("config", cls=Group)
def config() -> None:
    """Settings: `output`, `style`, `theme`, `current` (context), `contexts.NAME.server|ca|token_file`."""


@command("path", examples=["nsml config path", 'cat "$(nsml config path)"'])
@pass_app
def path(app: App) -> None:
    """Show where the configuration file is."""
    app.write(app.config.file)


@command("get", examples=["nsml config get", "nsml config get output"])
@click.argument("key", required=False)
@pass_app
def get(app: App, *, key: str | None) -> None:
    """Show one setting, or all that are set."""
    known = _flat(app.config)
    if key is None:
        for name, value in known.items():
            app.write(f"{name} = {value}")
    elif key in known:
        app.write(known[key])
    elif key == "current" or key in _CHOICES:
        raise CommandError(f"{key} is not set", code=ExitCode.NOT_FOUND)
    else:
        raise _unknown(key, app.config)


@command(
    "set",
    examples=[
        "nsml config set output wide",
        "nsml config set style nsml",
        "nsml config set contexts.lab.server gpu.lab:18553",
    ],
)
@click.argument("key")
@click.argument("value")
@pass_app
def set_(app: App, *, key: str, value: str) -> None:
    """Change one setting.

    An empty VALUE resets `output`, `style` or `theme`. With `style nsml` tables, messages and -j are those of NAVER's NSML: nsml help nsml.
    """
    app.save(_changed(app.config, key, value))


def _flat(config: Config) -> dict[str, str]:
    flat = {"current": config.current} if config.current else {}
    for name, context in sorted(config.contexts.items()):
        for part in _CONTEXT_KEYS:
            value = getattr(context, part)
            if value:
                flat[f"contexts.{name}.{part}"] = value
    return {**flat, **config.settings}


def _changed(config: Config, key: str, value: str) -> Config:
    if key == "current":
        if value not in config.contexts:
            raise CommandError(f"no such context: {value}", code=ExitCode.NOT_FOUND)
        return config._replace(current=value)
    if key in _CHOICES:
        noun, values = _CHOICES[key]
        if value and value not in values:
            raise CommandError(
                f"{value!r} is not {noun}",
                code=ExitCode.USAGE,
                advice=f"one of {', '.join(values)}",
            )
        return _set(config, key, value)
    prefix, _, part = key.rpartition(".")
    name = prefix.removeprefix("contexts.")
    if prefix == f"contexts.{name}" and part in _CONTEXT_KEYS:
        return _changed_context(config, name, part, value)
    raise _unknown(key, config)


def _set(config: Config, key: str, value: str) -> Config:
    rest = {name: item for name, item in config.settings.items() if name != key}
    return config._replace(settings={**rest, key: value} if value else rest)


def _changed_context(config: Config, name: str, part: str, value: str) -> Config:
    found = config.contexts.get(name)
    if part == "server":
        server = contexts.parse_server(value)
        fresh = contexts.Context(name=name, server=server)
        return config.with_context(
            found._replace(server=server) if found else fresh, current=not config.current
        )
    if found is None:
        raise CommandError(
            f"no such context: {name}",
            code=ExitCode.NOT_FOUND,
            advice=f"nsml config set {shell_word(f'contexts.{name}.server')} HOST:PORT",
        )
    file = str(Path(value).expanduser().absolute()) if value else ""
    if part == "ca":
        changed = found._replace(ca=file, server_name="")  # the name belonged to the old one
    else:
        changed = found._replace(token_file=file)
    return config.with_context(changed, current=False)


def _unknown(key: str, config: Config) -> CommandError:
    known = ["current", *_CHOICES, *_flat(config)]
    return CommandError(
        f"no such setting: {key}",
        code=ExitCode.USAGE,
        advice=to_try("nsml config get", near(key, known)) or "nsml config get",
    )


config.add_command(path)
config.add_command(get)
config.add_command(set_)
