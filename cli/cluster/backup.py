"""admin backup, admin restore: back up the whole platform to a folder, and restore it."""

from __future__ import annotations

import subprocess
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.exits import CommandError, ExitCode
from cli.group import command, pass_app
from cli.local import processes
from cli.local.bringup import BringUp
from cli.local.data_folder import (
    CONTROL_PLANE,
    Choices,
    DataFolder,
    data_folder,
    node_name,
    toml,
    user_name,
)
from cli.local.up import check_no_passwords, control_plane_settings, standing_options
from cli.output import write_one
from nsml.client.contexts import write_private
from nsml.common.units import counted, local_moment, moment, size_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cli.app import App
    from nsml.client.backups import Result
    from nsml.client.calls import Client
    from nsml.content.backups import Backup

KEYS = ("ca.key", "ca.pem", "secrets.key", "platform.key")
"""Private files of the control plane's data folder, needed by a restored platform."""

_FOLDER = click.Path(file_okay=False, path_type=Path)
_EXISTING = click.Path(exists=True, file_okay=False, path_type=Path, resolve_path=True)


@command(
    "backup",
    reads=True,
    examples=[
        "nsml admin backup /backups/nsml",
        "nsml admin backup --check /backups/nsml",
        "nsml admin backup /backups/nsml --without-objects",
    ],
)
@click.argument("folder", type=_FOLDER)
@click.option("--check", "is_check", is_flag=True, help="Only verify FOLDER.")
@click.option("--keys", type=_EXISTING, metavar="DIR", help="The control plane's data folder.")
@click.option("--without-keys", is_flag=True, help="Without the platform's private keys.")
@click.option("--without-objects", is_flag=True, help="Without datasets and checkpoints.")
@pass_app
def backup(
    app: App,
    *,
    folder: Path,
    is_check: bool,
    keys: Path | None,
    without_keys: bool,
    without_objects: bool,
) -> None:
    """Write a backup of the whole platform into FOLDER, while it runs.

    Each backup has a folder of its own in FOLDER; content of an earlier one is not copied again.
    Run it on the control plane's machine, as its user: then the backup includes the platform's
    private keys, and gives whoever has FOLDER control of the platform.
    """
    if is_check:
        _check(app, folder)
        return
    folder = folder.absolute()
    if without_keys and keys:
        raise click.UsageError("--keys and --without-keys exclude one another")

    def keys_of(cluster_id: str) -> tuple[Mapping[str, bytes], Mapping[str, Any]]:
        if without_keys:
            return {}, {}
        return _keys_of(app, cluster_id, keys)

    async def take(client: Client) -> Result:
        from nsml.client.backups import take as take_backup

        return await take_backup(
            client.backups,
            folder,
            without_objects=without_objects,
            keys_of=keys_of,
        )

    _tell_taken(app, app.call(take))


def _tell_taken(app: App, taken: Result) -> None:
    from nsml.content.backups import BackupError

    made, manifest = taken.backup, taken.backup.manifest
    lines = [
        f"backup {made.path}",
        f"  platform  {manifest.cluster_id}, nsml {manifest.version}",
        f"  as of     {local_moment(manifest.taken_at)}",
        f"  content   {_content_words(taken)}",
        f"  keys      {_key_words(manifest.keys)}",
    ]
    write_one(app, _record(made) | {"copied_blobs": taken.progress.copied}, lines, name="path")
    if _has_private(manifest.keys):
        app.say("these keys are the platform: keep the folder where only you can read it")
    if manifest.lost:
        raise BackupError(
            f"{counted(len(manifest.lost), 'blob')} could not be read from the object store, and "
            f"are not in the backup: {', '.join(one[:12] for one in manifest.lost[:5])}; everything "
            "else is"
        )


def _content_words(taken: Result) -> str:
    manifest, progress = taken.backup.manifest, taken.progress
    if "objects" not in manifest.parts:
        return "left out: restore beside the same object store"
    return (
        f"{counted(manifest.blob_count, 'blob')}, {progress.copied} of them new "
        f"({size_text(progress.copied_bytes)})"
    )


def _has_private(keys: Mapping[str, object]) -> bool:
    """Return whether there is more than the authority's certificate, which is not secret."""
    return bool(keys.keys() - {"ca.pem"})


def _key_words(keys: Mapping[str, object]) -> str:
    if _has_private(keys):
        return ", ".join(sorted(keys))
    return "none: to restore, you need those of the control plane (--keys DIR)"


def _record(made: Backup) -> dict[str, Any]:
    manifest = made.manifest
    return {
        "path": str(made.path),
        "cluster_id": manifest.cluster_id,
        "version": manifest.version,
        "taken_at": moment(manifest.taken_at),
        "revision": manifest.revision,
        "blobs": manifest.blob_count,
        "keys": sorted(manifest.keys),
        "lost": list(manifest.lost),
    }


def _keys_of(
    app: App, cluster_id: str, chosen: Path | None
) -> tuple[Mapping[str, bytes], Mapping[str, Any]]:
    """Return the private files of a platform, if readable by this user, and the choices of its `nsml up`.

    Raises:
        CommandError: the named folder belongs to another platform.
    """
    local = data_folder(None, app.environ)
    folder = chosen or local.path / CONTROL_PLANE
    if chosen is None and _platform_of(folder) != cluster_id:
        # For a unit: the socket in use is in its data folder.
        sockets = [one for one in app.context.servers if one.startswith("unix:")]
        folder = next((Path(one.removeprefix("unix:")).parent for one in sockets), folder)
        local = DataFolder(folder.parent)
    found = _platform_of(folder)
    if found != cluster_id:
        if chosen is not None:
            raise CommandError(
                f"{chosen} is not the data folder of this platform",
                why=f"it is of {found or 'none'}, the platform is {cluster_id}",
                advice="--keys DIR names the folder in which the control plane keeps its ca.key",
            )
        return {}, {}
    choices = local.choices() if chosen is None else None
    files = {name: folder / name for name in KEYS}
    if choices is not None and choices.platform_key:
        files["platform.key"] = Path(choices.platform_key)
    keys = {name: file.read_bytes() for name, file in files.items() if file.exists()}
    return keys, {} if choices is None else asdict(choices)


def _platform_of(folder: Path) -> str:
    """Return the platform id of a control plane's data folder; "" if unreadable."""
    try:
        return (folder / "cluster").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _check(app: App, folder: Path) -> None:
    from nsml.content.backups import Backup, BackupError, backups_in

    records, failures = [], []
    for path in backups_in(folder.absolute()):
        try:
            found = Backup(path)
            found.check()
        except BackupError as error:
            failures.append(str(error))
            app.say(f"{path}: NOT whole: {error}")
            continue
        records.append(_record(found))
        app.say(f"{path}: whole, {counted(found.manifest.blob_count, 'blob')}")
    if failures:
        raise CommandError(
            f"{counted(len(failures), 'backup')} of {folder} cannot be restored",
            why=failures[0],
            advice="nsml admin backup FOLDER    makes another one",
        )
    write_one(app, records[-1], [f"{counted(len(records), 'backup')} in {folder}, all whole"])


@command(
    "restore",
    examples=[
        "nsml admin restore /backups/nsml",
        "nsml admin restore /backups/nsml/20261122T081500Z --data /srv/nsml",
        "nsml admin restore /backups/nsml --etcd https://a:2379 --history postgresql:///nsml",
    ],
)
@click.argument("folder", type=_FOLDER)
@click.option(
    "--keys", type=_EXISTING, metavar="DIR", help="Folder of the private keys, if elsewhere."
)
@standing_options
@click.option("--data", type=_FOLDER, metavar="FOLDER", help="Restore into this data folder.")
@pass_app
def restore(
    app: App,
    /,
    *,
    folder: Path,
    keys: Path | None,
    data: Path | None,
    **standing: Any,
) -> None:
    """Restore a platform from a backup.

    It is restored into an empty data folder on this machine, from the newest backup in FOLDER, or
    from FOLDER itself. `nsml up` starts the platform afterwards. To restore into an etcd cluster, a
    database or a bucket, name it as for `nsml up`; it must be empty.
    """
    from nsml.content.backups import Backup, backups_in

    if standing["etcd"] and standing["embedded"]:
        raise click.UsageError("--etcd and --embedded exclude one another")
    check_no_passwords(**{name: value for name, value in standing.items() if value is not True})
    found = Backup(backups_in(folder.absolute())[-1])
    target = data_folder(data, app.environ)
    with target.locked():
        choices = _choices_of(found, **standing)
        if target.choices() is not None or target.running(CONTROL_PLANE) is not None:
            raise CommandError(
                f"{target.path} is in use: a platform, or a node of one, was set up there",
                code=ExitCode.CONFLICT,
                advice="nsml admin restore ... --data AN_EMPTY_FOLDER",
            )
        app.say(f"restoring {found.path} into {target.path}")
        chosen = _restore(app, target, choices, found, keys)
        target.keep(chosen)
    app.write(
        f"the platform {found.manifest.cluster_id} is restored, as of "
        f"{local_moment(found.manifest.taken_at)}"
    )
    app.say("next:  nsml up" + (f" --data {target.path}" if data is not None else ""))
    app.say("       nsml node ls    # held nodes run what came after the backup (docs/backup.md)")


def _choices_of(
    found: Backup, *, etcd: str | None, embedded: bool, **elsewhere: str | None
) -> Choices:
    """Return the platform's setup; its services are the given ones, else in the folder."""
    known = {field.name for field in fields(Choices)}
    kept = {name: value for name, value in found.manifest.choices.items() if name in known}
    try:
        choices = Choices(**kept)
    except TypeError:
        choices = Choices()
    inside = "embedded" if embedded or choices.coordination == "embedded" else "auto"
    stands_on: dict[str, Any] = {name: value or "" for name, value in elsewhere.items()}
    return replace(
        choices,
        coordination=etcd or inside,
        admin=choices.admin or user_name(),
        node=choices.node or node_name(),
        **stands_on,
    )


def _restore(
    app: App, target: DataFolder, choices: Choices, found: Backup, keys: Path | None
) -> Choices:
    """Run the control plane's program to fill the folder; return the choices, with the coordination.

    Raises:
        CommandError: it refused, or failed.
    """
    settings = control_plane_settings(target, choices)
    BringUp(app, target).check(CONTROL_PLANE, settings)
    file = target.settings(CONTROL_PLANE)
    write_private(file, toml(settings))
    words = ["--config", str(file), "--restore", str(found.path)]
    if keys is not None:
        words += ["--keys", str(keys)]
    done = subprocess.run(
        [*processes.program(CONTROL_PLANE), *words],
        env={**app.environ, f"NSML_{CONTROL_PLANE.upper()}_LOG_LEVEL": "warning"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if line and not line.startswith("{")]
    # this command prints the first line of its report itself
    for line in (*said, *done.stdout.splitlines()[1:]) if done.returncode == 0 else ():
        app.say(line.removeprefix("nsml-controlplane: "))
    if done.returncode:
        raise CommandError(
            "nothing that can be used was restored",
            why=(said or [f"nsml-controlplane ended with {done.returncode}"])[-1].removeprefix(
                "nsml-controlplane: "
            ),
            advice="nsml admin backup --check FOLDER\nnsml admin restore FOLDER --data AN_EMPTY_FOLDER",
        )
    kind = (target.path / CONTROL_PLANE / "coordination").read_text(encoding="utf-8").strip()
    return replace(choices, coordination=kind)
