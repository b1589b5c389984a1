"""Locks of environments: what they may hold, and what is installed for one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsml.packages.locks import LockedPackage, LockRefused, differences, locked, read_lock
from nsml.packages.requirements import CondaPackages, Requirements

HASH = f"--hash=sha256:{'a' * 64}"
WHEEL = "https://files.example/own-1.0-py3-none-any.whl"


def test_packages_have_a_version_or_a_wheel_and_hashes() -> None:
    found = read_lock(
        f"Nump_y[a,b]==2.1.0 ; os_name == 'posix' {HASH} {HASH}\nown @ {WHEEL} {HASH}\n"
    )
    assert found == (LockedPackage("nump-y", "2.1.0"), LockedPackage("own", url=WHEEL))


@pytest.mark.parametrize(
    "text",
    [
        *("", "\n", f"a==1 {HASH}", "a==1\n", f"a==1 {HASH} x\n", f"a>=1 {HASH}\n", f"a {HASH}\n"),
        *(f"-e a==1 {HASH}\n", f"--index-url https://x {HASH}\n", f"-r other.txt {HASH}\n"),
        *(f"a @ file:///x.whl {HASH}\n", f"a @ http://x/a.whl {HASH}\n", f"a @ git+https://x {HASH}\n"),
        *(f"a @ https://x/a.tar.gz {HASH}\n", f"a==1 {HASH}\r\n", f"a==1 {HASH}\nA==2 {HASH}\n"),
        *(f"a==1 {HASH[:-1]}\n", f"a==1 --hash=md5:{'a' * 32}\n", f"# a==1 {HASH}\n", f"a==1\0 {HASH}\n"),
        *(f"{'a' * 200}==1 {HASH}\n", "".join(f"p{n}==1 {HASH}\n" for n in range(10_001))),
        *(f"a==1 ; x{end}--index-url https://x {HASH}\n" for end in " \t\x0b\x1c\x85\u2028\r"),
        f"a==1 ; '${{SECRET}}' == '' {HASH}\n",
        *(f"a==1 ;{' ' * 2_000_000}\n", f"a==1 ; x\u2028--index-url https://x {HASH}\u2028\n"),
    ],
)  # fmt: skip
def test_everything_else_is_no_lock(text: str) -> None:
    with pytest.raises(LockRefused):
        read_lock(text)


def test_packages_come_from_where_code_and_site_say() -> None:
    asked = Requirements(lines=("--index-url https://index.example/simple", "a>=1"))
    site = ("--extra-index-url https://cpu.example/whl", f"own @ {WHEEL}", "b")
    lock = f"a==1 {HASH}\nb==2 {HASH}\nown @ {WHEEL} {HASH}\n"
    assert locked(asked, lock, site).lines == (
        *("--extra-index-url https://cpu.example/whl", "--index-url https://index.example/simple"),
        *lock.splitlines(),
    )
    with pytest.raises(LockRefused, match="does not name"):
        locked(asked, lock)
    own = Requirements(lines=(f"a==1 {HASH}",))
    assert locked(own, lock, site) == own


SHA = f"#sha256:{'b' * 64}"
FORGE = "https://conda.anaconda.org/conda-forge"
HEAD = "# platform: linux-64\n@EXPLICIT\n"
CONDA = (
    f"{HEAD}{FORGE}/linux-64/python-3.12.4-h194c7f8_0_cpython.conda{SHA}\n"
    f"{FORGE}/noarch/pytorch-2.0_1-py_0.tar.bz2{SHA}\n# pip torch==2.1 {HASH}\n"
)


def test_packages_of_conda_are_files_of_channels_with_hashes() -> None:
    assert read_lock(CONDA) == [
        LockedPackage("python", "3.12.4", channel="conda-forge"),
        LockedPackage("torch", "2.0_1", channel="conda-forge"),
        LockedPackage("torch", "2.1"),
    ]
    conda = CondaPackages(channels=("conda-forge",), specs=("pytorch",))
    asked = Requirements(lines=("--pre", "torch"), conda=conda)
    found = locked(asked, CONDA, ("b",))
    assert found.lines == ("--pre", f"torch==2.1 {HASH}")
    assert found.conda == replace(conda, lock=CONDA)
    for code, lock in ((Requirements(lines=("a",)), CONDA), (asked, f"a==1 {HASH}\n")):
        with pytest.raises(LockRefused, match="the other way round"):
            locked(code, lock)


def test_packages_of_conda_whose_names_are_one_on_pypi_are_two() -> None:
    """conda-forge has both, and installs them together."""
    packages = [
        *("typing_extensions-4.12-pyha_0", "typing-extensions-4.12-hd_0"),
        *("importlib_metadata-8.0-hd_0", "importlib-metadata-8.0-pyha_0"),
    ]
    lock = HEAD + "".join(f"{FORGE}/noarch/{one}.conda{SHA}\n" for one in packages)
    assert [(one.name, one.version) for one in read_lock(lock)] == [
        *[("typing-extensions", "4.12")] * 2,
        *[("importlib-metadata", "8.0")] * 2,
    ]
    assert differences(lock.replace("s-4.12", "s-4.13"), lock) == "typing-extensions 4.13 (4.12)"
    for again in (packages[0], packages[0].replace("4.12", "4.13"), packages[0].title()):
        with pytest.raises(LockRefused, match="names a package twice"):
            read_lock(f"{lock}{FORGE}/linux-64/{again}.conda{SHA}\n")


@pytest.mark.parametrize(
    "line",
    [
        f"{FORGE}/noarch/a-1-0.conda",
        f"{FORGE}/noarch/a-1-0.conda#{'b' * 32}",
        f"{FORGE}/noarch/a-1-0.conda{SHA[:-1]}",
        f"{FORGE}/noarch/a-1-0.zip{SHA}",
        f"{FORGE}/../x/noarch/a-1-0.conda{SHA}",
        f"https://evil.example/conda-forge/noarch/a-1-0.conda{SHA}",
        f"file:///srv/noarch/a-1-0.conda{SHA}",
        f"{FORGE}/noarch/a-1-0.conda{SHA} -c x",
        f"{FORGE}/noarch/python-1-0.conda{SHA}\n{FORGE}/noarch/python-2-0.conda{SHA}",
        "# pip a==1",
        f"# pip -e . {HASH}",
        "# a comment",
        "",
    ],
)
def test_a_lock_of_conda_has_nothing_else(line: str) -> None:
    with pytest.raises(LockRefused):
        read_lock(f"{HEAD}{line}\n")
