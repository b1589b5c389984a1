"""Checks of a code folder before upload: what no node would start or install, and what is missing.

Certain failures are refused here, to save the wait in the queue; the rest are warnings.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from cli.exits import CommandError, ExitCode
from cli.sessions.preflight import no_entry
from nsml._path_text import native_path, path_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cli.app import App
    from cli.sessions.run_request import RunOptions
    from nsml.content.listing import FolderFile, FolderFiles
    from nsml.packages.imports import Import
    from nsml.packages.requirements import Requirements

_LAUNCHERS = {"accelerate": "accelerate", "deepspeed": "deepspeed", "torchrun": "torch"}
"""Programs of packages, and their modules."""
_PYTHONS = tuple(f"3.{minor}.{patch}" for minor in range(11, 40) for patch in (0, 99))
"""Python versions that nodes may have."""
_SHOWN = 5
_NOT_SEEN = "sessions do not see the packages of this machine: it fails unless its node's default packages have them"


_OF_PYTHON = (".py", ".pyw", ".pyz")
_SHELLS = {".sh": "sh", ".bash": "bash"}
"""Interpreters of scripts without a #! line, by file extension."""


class Code:
    """The uploaded files of a folder, by their paths as text."""

    def __init__(self, folder: Path, listed: FolderFiles) -> None:
        self.folder = folder
        self.files: Mapping[str, FolderFile] = {item.path: item for item in listed.files}

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None if it is not uploaded or no longer readable."""
        if path not in self.files:
            return None
        try:
            return (self.folder / native_path(path)).read_bytes()
        except OSError:
            return None

    def text(self, name: str) -> str | None:
        """Return the text of a file that lists packages. Raises RequirementsRefused if it is too long."""
        from nsml.packages.requirements import as_text

        content = self.read(path_text(name))
        return None if content is None else as_text(name, content)


def check_code(app: App, code: Code, options: RunOptions) -> list[str]:
    """Refuse code that no node would start or install (CommandError), and warn of missing parts.

    Returns the requirements that need nodes with containers, in words.
    """
    _check_entry(code, options)
    _check_program(code, options)
    _note_variables(app, code, options)
    _note_recipes(app, code.folder, options.spec.dockerfile)
    if options.spec.dockerfile:
        check_dockerfile(app, code, options)
        return []
    required = _check_requirements(app, code, options)
    options.spec.needs_conda = bool(required.conda)
    _tell_source(app, required)
    _warn_of_packages(app, code, options, required)
    needs = [f"the image {required.image}"] if required.image and not options.spec.image else []
    return needs + (["the packages of nsml_package.txt"] if required.packages else [])


def _check_entry(code: Code, options: RunOptions) -> None:
    if options.spec.argv:
        return
    if path_text(options.spec.entry) in code.files:
        _check_language(code, options.spec.entry)
        return
    raise no_entry(
        f"the entry {options.spec.entry} is not among the files that are sent",
        why="an ignore rule leaves it out",
        advice=f"add a line !{options.spec.entry} to .nsmlignore",
    )


def _check_language(code: Code, entry: str) -> None:
    """Raise if the entry is no Python program."""
    from nsml.common.shell import shell_line
    from nsml.common.text import visible

    suffix = PurePosixPath(entry).suffix.lower()
    first = (code.read(path_text(entry)) or b"").partition(b"\n")[0]
    is_named = first.startswith(b"#!") and b"py" not in first and suffix not in _OF_PYTHON
    if suffix == ".ipynb":
        script = shell_line(["jupyter", "nbconvert", "--to", "script", entry])
        advice = f"{script}    and run the script"
    elif is_named or suffix in _SHELLS:
        words = [f"./{entry}"] if is_named else [_SHELLS[suffix], entry]
        advice = shell_line(["nsml", "run", "--argv", "--", *words])
    else:
        return
    raise no_entry(
        f"{visible(path_text(entry))} is not a program in Python",
        why="python runs the entry",
        advice=advice,
    )


def _check_program(code: Code, options: RunOptions) -> None:
    """Raise for a program of the folder that no node can start."""
    from nsml.common.shell import shell_word

    program = options.spec.argv[0] if options.spec.argv else ""
    if "/" not in program or program.startswith("/") or ".." in PurePosixPath(program).parts:
        return
    file = str(PurePosixPath(program))
    path = path_text(file)
    if path not in code.files:
        raise no_entry(
            f"no such program: {path} is not among the files that are sent",
            advice="a line that takes it back in .nsmlignore"
            if (code.folder / program).exists()
            else "",
        )
    first = (code.read(path) or b"").partition(b"\n")[0]
    if first.startswith(b"#!") and first.endswith(b"\r"):
        raise CommandError(
            f"{path} cannot start: its first line ends in CR LF, as on Windows",
            code=ExitCode.USAGE,
            reason="LINE_ENDS",
            why="the interpreter is looked for under a name that ends in a carriage return",
            advice=f"sed -i 's/\\r$//' {shell_word(file)}",
        )
    if not code.files[path].mode & 0o100:
        raise CommandError(
            f"{path} is not executable",
            code=ExitCode.USAGE,
            reason="NOT_EXECUTABLE",
            advice=f"chmod +x {shell_word(file)}",
        )


def _note_variables(app: App, code: Code, options: RunOptions) -> None:
    """Report variable files sent with the code, and that .env is not sent by default."""
    from nsml.common.text import visible

    named = {_within(code.folder, name) for name in options.environment_files}
    sent = [path for path in code.files if path in named or path.rpartition("/")[2] == ".env"]
    for path in sent:
        app.say(
            f"warning: {visible(path)} is sent with the code, for all who see the session"
            " (.nsmlignore leaves it out)"
        )
    if ".env" not in {*sent, *named} and (code.folder / ".env").is_file():
        app.say("note: .env is not sent: --env-file .env gives its variables to the program")


_RECIPES = (
    *("Dockerfile", "Containerfile", "Singularity", ".devcontainer"),
    *("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml"),
)
"""Files that other tools build containers from."""


def check_dockerfile(app: App, code: Code, options: RunOptions) -> None:
    """Raise CommandError for a Dockerfile that no node builds, or that is not sent."""
    from nsml.common.text import visible
    from nsml.packages.dockerfile import DockerfileRefused, read_dockerfile

    path = options.spec.dockerfile
    content = code.read(path_text(path))
    if content is None:
        is_build = options.request.command[:3] == ["nsml", "image", "build"]
        flag = "-f" if is_build else "--dockerfile"
        raise CommandError(
            f"{visible(path)} is not among the files that are sent",
            code=ExitCode.USAGE,
            reason="NO_DOCKERFILE",
            why=f"{flag} takes the path of a file in the folder of the code",
            advice="nsml image build -f PATH" if is_build else "nsml run --dockerfile PATH ...",
        )
    try:
        found = read_dockerfile(content.decode(errors="replace"), options.spec.build_arguments)
    except DockerfileRefused as error:
        raise CommandError(
            f"{visible(path)}, {visible(str(error))}",
            code=ExitCode.USAGE,
            reason="DOCKERFILE",
            why=error.why,
        ) from error
    for note in found.notes:
        app.say(f"note: {note}")


def _note_recipes(app: App, folder: Path, built: str) -> None:
    """Report that container recipes are not built, and the alternative."""
    found = [name for name in _RECIPES if (folder / name).exists()]
    if found == ["Dockerfile"] and not built:
        app.say(
            "note: Dockerfile is not built: nsml run --dockerfile Dockerfile builds and uses it"
        )
    elif found and not built:
        app.say(
            f"note: {', '.join(found)} {'is' if len(found) == 1 else 'are'} not built: --dockerfile FILE builds a"
            " Dockerfile; or name an image with --image,"
            " Python packages in requirements.txt, Debian packages in nsml_package.txt"
        )


def _within(folder: Path, name: str) -> str:
    """Return a file's path in the folder, as in a manifest; "" for one outside."""
    try:
        return path_text((folder / name).resolve().relative_to(folder.resolve()).as_posix())
    except (ValueError, OSError):
        return ""


def _check_requirements(app: App, code: Code, options: RunOptions) -> Requirements:
    """Return the folder's requirements, read as on nodes; CommandError for what no node installs."""
    from nsml.packages.requirements import ImageRefused, RequirementsRefused, read_requirements

    try:
        required = read_requirements(
            code.text,
            entry=_entry(options),
            files=sorted(code.files),
            may_build=True,
            has_image=bool(options.spec.image),
        )
    except RequirementsRefused as error:
        raise CommandError(
            error.message,
            code=ExitCode.USAGE,
            reason="NO_IMAGE" if isinstance(error, ImageRefused) else "REQUIREMENTS",
            why=error.why,
            advice=error.advice,
        ) from error
    for note in required.notes:
        app.say(f"note: {note}")
    has_image = options.spec.image or required.image
    if required.refuses_python(*_PYTHONS) and not has_image:
        raise CommandError(
            f"{required.source} requires Python {required.python}",
            code=ExitCode.USAGE,
            reason="REQUIREMENTS",
            why="nodes have Python 3.11 or newer",
            advice="nsml run --image NAME    with an image that has that Python",
        )
    return required


def _entry(options: RunOptions) -> str:
    return "" if options.spec.argv else path_text(options.spec.entry)


def _tell_source(app: App, required: Requirements) -> None:
    """Report the source of the packages if it is not the usual one."""
    from nsml.common.text import visible
    from nsml.common.units import counted

    if not required.is_of_lists:
        count = counted(required.count, "package")
        what = ", with conda" if required.conda else ""
        app.say(f"environment: from {visible(required.source)} ({count}{what})")


def warn_of_unread(
    app: App, code: Code, entries: Sequence[str], required: Requirements
) -> set[str]:
    """Warn of package files that are not read; return the names of all packages that any file lists."""
    from nsml.packages.requirements import name_of
    from nsml.packages.unread_files import lock_of, unread_files

    listed = set(required.names)
    for file, lines, advice in unread_files(code.text, entries, code.files, required.source):
        missing = [line for line in lines if name_of(line) not in listed]
        if missing or not lines:
            lock = lock_of(code.text) if file == "pyproject.toml" else ""
            names = " and ".join(filter(None, (file, lock)))
            is_read = f"{names} {'are' if lock else 'is'} not read"
            _warn(app, code, is_read, missing, advice, required=required)
            listed |= {name_of(line) for line in missing}
    return listed


def _warn_of_packages(app: App, code: Code, options: RunOptions, required: Requirements) -> None:
    """Warn of package files that are not read, and of imported packages listed nowhere."""
    from nsml.common.text import visible
    from nsml.packages.distributions import is_known
    from nsml.packages.imports import foreign_imports, missing_imports

    entries = _entries(code, options)
    listed = warn_of_unread(app, code, entries, required)
    if options.spec.image or required.image or _is_of_machine(options):
        return  # these have their own packages
    imports = [*foreign_imports(entries, code.files, code.read), *_launched(options)]
    unlisted = missing_imports(imports, listed)
    known = {name: found for name, found in unlisted.items() if is_known(name)}
    if known:
        _warn(app, code, _imported_text(known), [*known], required=required)
    if others := [name for name in unlisted if name not in known]:
        # A package with a module's name may be anybody's.
        text = _imported_text({name: unlisted[name] for name in others})
        app.say(f"warning: {visible(text)}, which no package is listed for")
        app.say(f"  why: {_NOT_SEEN}")
        place = "requirements.txt" if required.is_of_lists else required.source
        place = "pyproject.toml" if place == "uv.lock" else place
        app.say(f"  try: list the package in {visible(place)}; its name may not be the module's")


def _warn(
    app: App,
    code: Code,
    what: str,
    lines: Sequence[str],
    advice: str = "",
    *,
    required: Requirements,
) -> None:
    """Warn of unlisted requirements, with the command that lists them: `advice`, or printf.

    `lines`: empty if unknown. `required`: the listed ones.
    """
    from nsml.common.shell import shell_line
    from nsml.common.text import visible

    some = _some(lines) if lines else "its packages"
    source = required.source
    content = code.read("requirements.txt")
    lacks = (
        f"{visible(source)} does not name {some}"
        if not required.is_of_lists
        else f"there is no requirements.txt that names {some}"
        if content is None
        else f"requirements.txt does not name {some}"
    )
    app.say(f"warning: {visible(what)}, and {lacks}")
    app.say(f"  why: {_NOT_SEEN}")
    if lines and not required.is_of_lists:
        # a requirements.txt would replace it
        add = shell_line(["uv", "add", *lines])
        is_project = source in {"uv.lock", "pyproject.toml"}
        app.say(f"  try: {add if is_project else f'list {some} in {visible(source)}'}")
        return
    if advice or not lines:
        app.say(f"  try: {advice or 'list in requirements.txt what the program imports'}")
        return
    form = "%s\\n" if not content or content.endswith(b"\n") else "\\n%s"
    app.say(f"  try: printf '{form}' {shell_line(lines)} >> requirements.txt")


def _imported_text(missing: Mapping[str, Sequence[Import]]) -> str:
    first = next(iter(missing.values()))[0]
    names = dict.fromkeys(
        one.module.partition(".")[0] for found in missing.values() for one in found
    )
    where = f"{first.file} imports" if first.line else "the command needs"
    return f"{where} {_some([*names])}"


def _some(names: Sequence[str]) -> str:
    from cli.sessions.file_names import shortened

    return shortened(names, _SHOWN)


def _entries(code: Code, options: RunOptions) -> list[str]:
    """Return the uploaded Python programs that a session runs."""
    if not options.spec.argv:
        return [path_text(options.spec.entry)]
    words = list(options.spec.argv)
    if "-m" in words[:-1]:
        module = words[words.index("-m") + 1].replace(".", "/")
        words += [f"{module}.py", f"{module}/__main__.py"]
    paths = [path_text(str(PurePosixPath(word))) for word in words if word.endswith(".py")]
    return [path for path in paths if path in code.files]


def _is_of_machine(options: RunOptions) -> bool:
    """Return whether the program is an absolute path on the node: a Python there is not the session's."""
    return bool(options.spec.argv) and options.spec.argv[0].startswith("/")


def _launched(options: RunOptions) -> list[Import]:
    from nsml.packages.imports import Import

    program = options.spec.argv[0] if options.spec.argv else ""
    module = _LAUNCHERS.get(program)
    return [Import(module, program, 0)] if module else []
