"""What `nsml dev --sync` decides: any edits on both sides, and what must never be lost by them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from cli.sessions.sync_decisions import A_FOLDER, Conflict, Here, Kept, folders_above, plan
from nsml.copying.sync_messages import File, NoFile, Put, Remove, RemoveFolder

PATHS = [b"a", b"b", b"d", b"d/x", b"d/e/y", b"d/e/z"]
FILES = [File(letter * 64, is_executable) for letter in "123" for is_executable in (False, True)]
Tree = dict[bytes, File]


def is_tree(tree: Tree) -> bool:
    """Whether a folder can have these files: none is a folder of another."""
    return not any(above in tree for path in tree for above in folders_above(path))


trees = st.dictionaries(st.sampled_from(PATHS), st.sampled_from(FILES)).filter(is_tree)


class There:
    """A session's folder: its files, and what was put there from here by earlier rounds."""

    def __init__(self) -> None:
        self.files: Tree = {}
        self.known: Tree = {}
        self.folders: set[bytes] = set()
        self.made: set[bytes] = set()

    def state(self, path: bytes) -> File | NoFile | None:
        if any(path in folders_above(other) for other in self.files) or path in self.made:
            return NoFile(A_FOLDER)
        return self.files.get(path)

    def put(self, order: Put) -> bool:
        if self.state(order.path) != order.there or any(
            above in self.files for above in folders_above(order.path)
        ):
            return False
        for above in folders_above(order.path):
            if self.state(above) is None:
                self.folders.add(above)
            self.made.add(above)
        self.files[order.path] = order.file
        return True

    def edit(self, tree: Tree) -> None:
        """Programs of the session leave these files."""
        self.files = dict(tree)
        self.made = {above for path in tree for above in folders_above(path)}

    def round(self, here: Tree) -> list[Kept]:
        seen = {path: Here(file, 1, 1) for path, file in here.items()}
        paths = {*here, *self.known}
        states = {path: self.state(path) for path in paths}
        made = plan(paths, seen, self.known, states, self.folders)
        kept = list(made.kept)
        for path in made.same:
            self.known[path] = here[path]
        for path in made.forgotten:
            del self.known[path]
        for order in made.orders:
            if isinstance(order, Put):
                if self.put(order):
                    self.known[order.path] = order.file
                else:
                    kept.append(Kept(order.path, Conflict.CHANGED_TOO))
            elif isinstance(order, Remove):
                assert self.files.pop(order.path) == order.there
                del self.known[order.path]
            elif isinstance(order, RemoveFolder) and not any(
                order.path in folders_above(path) for path in {*self.files, *self.made}
            ):
                self.made.discard(order.path)
                self.folders.discard(order.path)
        return kept


@settings(deadline=None, max_examples=300)
@given(rounds=st.lists(st.tuples(trees, st.none() | trees), min_size=1, max_size=6))
def test_what_programs_changed_stays_and_all_else_follows(
    rounds: list[tuple[Tree, Tree | None]],
) -> None:
    there = There()
    for here, edit in rounds:
        if edit is not None:
            there.edit(edit)
        before, put_before = dict(there.files), dict(there.known)
        kept = {one.path for one in there.round(here)}
        theirs = {path: file for path, file in before.items() if put_before.get(path) != file}
        for path, file in theirs.items():
            assert there.files[path] == file, "theirs is neither replaced nor removed"
        for path, file in here.items():
            assert there.files.get(path) == file or path in kept, "it is there, or named"
        for path in there.files.keys() - here.keys():
            assert path in theirs, "what was only ours is gone with ours"
        for path in kept & here.keys():
            in_the_way = {path, *folders_above(path)}
            assert there.state(path) is not None or in_the_way & theirs.keys()
        after = dict(there.files)
        assert {one.path for one in there.round(here)} <= kept
        assert there.files == after, "a second round does nothing"


def test_a_folder_that_becomes_a_file_and_back() -> None:
    there = There()
    one, two = FILES[0], FILES[2]
    assert not there.round({b"d/x": one, b"d/e/y": one})
    assert not there.round({b"d": two})
    assert there.files == {b"d": two}
    assert not there.round({b"d/e/y": one})
    assert there.files == {b"d/e/y": one}


def test_a_folder_of_the_sessions_own_stays_when_it_is_empty() -> None:
    there = There()
    there.made.add(b"d")
    there.round({b"d/e/y": FILES[0]})
    there.round({})
    assert there.made == {b"d"}


def test_why_something_is_kept() -> None:
    here = {b"a": Here(FILES[0], 1, 1), b"b": Here(FILES[0], 1, 1), b"d": Here(FILES[0], 1, 1)}
    known = {b"a": FILES[0], b"b": FILES[2], b"gone": FILES[0]}
    states = {b"a": FILES[4], b"b": FILES[4], b"d": NoFile("a link"), b"gone": FILES[4]}
    assert plan([*here, b"gone"], here, known, states).kept == [
        Kept(b"a", Conflict.CHANGED_THERE),
        Kept(b"b", Conflict.CHANGED_TOO),
        Kept(b"d", Conflict.MADE_THERE, "a link"),
        Kept(b"gone", Conflict.REMOVED_HERE),
    ]
