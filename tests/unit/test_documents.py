"""What the documents say of the code is so."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import click
import pytest

from cli.app import App
from cli.root import PROGRAM, root
from nsml.common.shell import shell_split
from tests.support.documents import PAGES, REASONS, Block, blocks

ROOT = Path(__file__).parents[2]
_PLACE = re.compile(r"`([a-z_]+/[a-z_/]+\.py)` \(([^)]*)\)")


_TEST = re.compile(r"`(tests/[a-z0-9_/]+\.py)` \(([^)]*)\)")


def shown_by() -> list[tuple[str, str]]:
    """File and test of every row of the tables in faults.md."""
    page = (ROOT / "docs/faults.md").read_text()
    return [
        (file, name)
        for file, names in _TEST.findall(page)
        for name in re.findall(r"`(test_\w+)`", names)
    ]


@pytest.mark.parametrize(("file", "name"), shown_by())
def test_what_shows_a_fault_is_there(file: str, name: str) -> None:
    tree = ast.parse((ROOT / file).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert name in {one.name for one in ast.walk(tree) if isinstance(one, functions)}


def tables(page: str) -> list[list[str]]:
    """The tables of a page, each as its lines: the heads of its columns first."""
    found: list[list[str]] = []
    was_row = False
    for line in page.splitlines():
        is_row = line.startswith("|")
        if is_row and not was_row:
            found.append([])
        if is_row:
            found[-1].append(line)
        was_row = is_row
    return found


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_every_fault_that_is_tried_names_its_test() -> None:
    found = tables((ROOT / "docs/faults.md").read_text())
    tried = [row for table in found if cells(table[0])[-1] == "test" for row in table[2:]]
    assert len(tried) > 60
    assert [row for row in tried if not _TEST.search(cells(row)[-1])] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_rows_are_in_tables_as_wide_as_they_are(page: Path) -> None:
    """A row that stands after a paragraph is drawn as text."""
    for head, rule, *rows in tables(page.read_text()):
        assert set(rule) <= set("|-: "), head
        assert [row for row in rows if row.count("|") != head.count("|")] == []


def decided() -> list[tuple[str, str]]:
    """File and function of every row of the table in architecture.md."""
    page = (ROOT / "docs/architecture.md").read_text()
    _, _, table = page.partition("## 8. Where it is decided")
    return [
        (file, name)
        for file, names in _PLACE.findall(table)
        for name in re.findall(r"`(\w+)`", names)
    ]


@pytest.mark.parametrize(("file", "name"), decided())
def test_what_decides_is_where_the_table_says(file: str, name: str) -> None:
    tree = ast.parse((ROOT / file).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    named = {one.name for one in ast.walk(tree) if isinstance(one, functions)}
    named |= {ast.unparse(one.target) for one in tree.body if isinstance(one, ast.AnnAssign)}
    assert name in named


def test_the_table_is_read() -> None:
    assert len(decided()) > 25


def test_the_readme_begins_on_a_machine_without_gpus() -> None:
    """Its first run asks for a GPU."""
    readme = (ROOT / "README.md").read_text()
    first = next(line for line in readme.splitlines() if line.startswith("nsml up"))
    assert first.startswith("nsml up --simulate-gpus")


_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them, and those that are written out."""
    text = _FENCED.sub("", page.read_text())
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
    return slugs | set(re.findall(r'<a name="([^"]+)"', text))


@pytest.mark.parametrize("page", [*PAGES, "SECURITY.md", "CHANGELOG.md"])
def test_every_link_leads_somewhere(page: str) -> None:
    broken = []
    for path, anchor in _LINK.findall(_FENCED.sub("", (ROOT / page).read_text())):
        target = ((ROOT / page).parent / path) if path else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(f"{path}#{anchor}")
    assert broken == []


def test_the_index_lists_every_page() -> None:
    index = (ROOT / "docs/README.md").read_text()
    pages = [page.name for page in (ROOT / "docs").glob("*.md") if page.name != "README.md"]
    assert [name for name in pages if f"({name})" not in index] == []


EVERY = [block for page in PAGES for block in blocks(page)]
_COMMAND = re.compile(r"(?:\$ |sudo |[A-Z_]+=\S+ )*(nsml(?: [^(].*|$))")


def parsed(words: list[str]) -> None:
    """Raise what the command line raises for words that it does not take."""
    context = root.make_context(PROGRAM, words, obj=App(environ={}))
    found: click.Command = root
    left = [*context._protected_args, *context.args]
    while isinstance(found, click.Group):
        name, inner, rest = found.resolve_command(context, left)
        assert inner is not None
        context, found = inner.make_context(name, rest, parent=context), inner
        left = [*context._protected_args, *context.args]


@pytest.mark.parametrize("page", PAGES)
def test_every_nsml_line_of_a_block_is_one_that_nsml_takes(page: str) -> None:
    """What stands behind a command is a comment; flags and commands are there."""
    wrong = []
    for block in blocks(page):
        for line in "\n".join(block.lines).replace("\\\n", " ").splitlines():
            if command := _COMMAND.match(line):
                bare = re.split(r"\s#(?:\s|$)|\s[|<>&]", command[1], maxsplit=1)[0]
                try:
                    parsed(shell_split(bare)[1:])
                except click.exceptions.Exit:
                    pass
                except click.BadParameter as error:
                    if "does not exist" not in error.message:  # a file of the reader's
                        wrong.append(f"{block.place}: {line}: {error.message}")
                except click.UsageError as error:
                    wrong.append(f"{block.place}: {line}: {error.format_message()}")
    assert wrong == []


@pytest.mark.parametrize("block", EVERY, ids=lambda block: block.place)
def test_a_block_says_what_it_is_and_why_it_is_not_run(block: Block) -> None:
    if block.page.startswith("deploy/"):  # tests/integration/test_deploy.py has those
        return
    assert block.language, "sh: for a shell; text: no command"
    if block.reason:
        assert block.language == "sh"
        assert re.search(REASONS[block.reason], "\n".join(block.lines)), "the reason is not so"


def test_the_changelog_says_each_thing_once() -> None:
    """Releases that are merged, and lines that are moved, leave copies."""
    text = (ROOT / "CHANGELOG.md").read_text()
    lines = [" ".join(one.split()) for one in re.split(r"\n(?:- |#+ .*\n|\n)", text)]
    said = [one for one in lines if one and not one.startswith("#")]
    assert [one for one in said if said.count(one) > 1] == []
