"""Datasets: who uses them, and their files as a tree."""

from hypothesis import given
from hypothesis import strategies as st

from nsml.v1 import sessions_pb2 as pb
from nsml.v1.datasets_pb2 import Dataset
from nsml.view.datasets import (
    MOST_IN_FOLDER,
    MOST_TREE_LINES,
    DatasetUse,
    filter_of,
    names_in,
    tree_lines,
    use_lines,
)
from nsml.view.filter_fields import Filtered
from nsml.view.filtering import Filter


def session(owner, *names):
    return pb.Session(
        owner=owner, spec=pb.SessionSpec(datasets=[pb.DatasetReference(name=n) for n in names])
    )


def test_a_name_alone_is_the_owners_own():
    assert names_in(session("kim", "mnist", "lee/kin")) == ["kim/mnist", "lee/kin"]


def test_the_filter_of_a_dataset_takes_those_that_use_it_and_no_other():
    chosen = Filter(filter_of(Dataset(name="mnist", owner="kim")))
    taken = [
        chosen.takes(Filtered(session(*of)), 0.0)
        for of in (("kim", "mnist"), ("lee", "kim/mnist"), ("lee", "mnist"), ("kim", "mnist2"))
    ]
    assert taken == [True, True, False, False]


def test_a_tree_names_folders_first_with_all_that_is_below_them():
    files = [("b.txt", 5), ("train/a/1.png", 1_000), ("train/2.png", 2_000), ("a.txt", 4)]
    assert tree_lines(files) == [
        "train/  2 files, 3.0 kB",
        "  a/  1 file, 1.0 kB",
        "    1.png  1.0 kB",
        "  2.png  2.0 kB",
        "a.txt  4 Bytes",
        "b.txt  5 Bytes",
    ]


def test_of_many_files_a_few_are_named_and_the_rest_counted():
    lines = tree_lines([(f"{number:03d}", 10) for number in range(100)])
    assert len(lines) == MOST_IN_FOLDER + 1
    assert lines[-1] == f"... {100 - MOST_IN_FOLDER} more files, 880 Bytes"
    assert len(tree_lines([(str(n), 1) for n in range(MOST_IN_FOLDER + 1)])) == MOST_IN_FOLDER + 1


@given(st.lists(st.tuples(st.text(min_size=1), st.integers(0, 1 << 50))))
def test_any_paths_make_a_tree_of_bounded_length(files):
    assert len(tree_lines(files)) <= MOST_TREE_LINES + 1
    assert len(tree_lines([(f"{n}/{path}", size) for n, (path, size) in enumerate(files)])) >= len(
        files
    )


def test_a_card_says_who_uses_it():
    lines = use_lines(DatasetUse(Dataset(name="m", owner="kim"), 1, 1_200, ["a", "b"]), 0.0)
    assert "  used by     1 live session, 1,200 ended" in lines
    assert "  on nodes    a, b" in lines
