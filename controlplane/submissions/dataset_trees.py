"""The files of a dataset version that each step of a submission gets.

Predictions get the files that are open to all users of the dataset, and the test inputs: the part `test`, without the
parts below it. Since a file belongs to the part with the longest path, labels in a part of their own are not in it.
The evaluation gets everything. Access is checked by manifest: a step's node may fetch the manifest of its session, and
no user may read one of these by its digest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from controlplane.content.subtrees import TOP_FILES
from controlplane.domain.errors import StateConflict
from controlplane.domain.identity import UserCaller
from controlplane.domain.values import PartAccess
from nsml.content.tree_parts import REST
from nsml.spec.competition_datasets import (
    EVALUATION,
    LABELS,
    LOADER,
    TEST,
    TEST_SUBMIT,
    may_have_labels,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from controlplane.content.content import Content
    from controlplane.content.subtrees import Subtree
    from controlplane.domain.identity import User
    from controlplane.history.values import DatasetListing

PREDICTION_FOLDER: Final = "prediction"
"""The folder of the prediction beside the dataset, below /data, while it is evaluated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionTrees:
    """The trees of a version.

    Attributes:
        test: for predictions: open files, and the test inputs.
        dry_run: for dry runs: open files, and the inputs of `test_submit`.
        dry_run_folder: the folder with the inputs of dry runs: `test_submit`, or `test` without one; "": these are hidden,
            and there are no dry runs.
        code: the files at the top, such as evaluation.py.
        whole, whole_bytes: everything, for the evaluation.
    """

    test: Subtree
    dry_run: Subtree
    dry_run_folder: str
    code: Subtree
    whole: str
    whole_bytes: int


async def trees_of(content: Content, owner: User, listing: DatasetListing) -> SubmissionTrees:
    """Store the trees of a dataset version, as its owner.

    Raises:
        StateConflict: the version takes no submissions; says what its owner has to do.
    """
    dataset, parts = listing.dataset, listing.parts
    full = f"{dataset.owner}/{dataset.name}"
    if dataset.name == PREDICTION_FOLDER:
        raise _refused(
            full,
            f"its name is that of the folder /data/{PREDICTION_FOLDER} with the prediction",
            f"nsml dataset push -f -l -e {EVALUATION} OTHER_NAME PATH    under another name",
        )
    access = dict(parts.access) if parts is not None else {}
    restricted = {path for path, one in access.items() if one is not PartAccess.OPEN}
    has_files = {one.path for one, _ in parts.parts() if one.file_count} if parts else set()
    if not any(map(may_have_labels, restricted & has_files)):
        raise _refused(
            full,
            f"its test labels are not hidden in a part of their own, such as {TEST}/{LABELS}",
            _push(dataset.name),
        )
    further = {TEST, TEST_SUBMIT, EVALUATION, LOADER}
    opened = {REST, *access, *further} - restricted
    (
        test,
        dry_run,
        inputs,
        dry_inputs,
        open_inputs,
        evaluation,
        loader,
        code,
    ) = await content.subtrees(
        UserCaller(user=owner),
        listing.whole_digest,
        {*access, *further},
        [
            opened | {TEST},
            opened | {TEST_SUBMIT},
            {TEST, *_below(TEST, opened)},
            {TEST_SUBMIT, *_below(TEST_SUBMIT, opened)},
            {*opened & {TEST}, *_below(TEST, opened)},
            {EVALUATION},
            opened & {LOADER},
            {TOP_FILES},
        ],
        search=LABELS,
    )
    if not inputs.file_count:
        raise _refused(full, f"it has no test inputs in the folder {TEST}", _push(dataset.name))
    if not evaluation.file_count:
        raise _refused(full, f"it has no {EVALUATION} at its top", _push(dataset.name))
    if not loader.file_count:
        raise _refused(full, f"it has no open {LOADER} at its top", _push(dataset.name))
    for one in (test, dry_run):
        if one.match:
            raise _refused(
                full,
                f"predictions would read its labels: {one.match[:80]} is not hidden in a part of its own",
                f"nsml dataset share {dataset.name} --hide {one.match[:200]}",
            )
    folders = {TEST_SUBMIT: dry_inputs, TEST: open_inputs}
    whole = [one for one in parts.roots if one.digest == listing.whole_digest] if parts else []
    return SubmissionTrees(
        test=test,
        dry_run=dry_run,
        dry_run_folder=next((name for name, found in folders.items() if found.file_count), ""),
        code=code,
        whole=listing.whole_digest,
        whole_bytes=max((one.size_bytes for one in whole), default=0),
    )


def no_dry_runs(listing: DatasetListing) -> StateConflict:
    """Return the error of a dry run for which the dataset has no inputs."""
    name = listing.dataset.name
    return StateConflict(
        f"{listing.dataset.owner}/{name} takes no dry runs",
        why=f"its test inputs are hidden, and it has no small test set in the folder {TEST_SUBMIT}",
        attempt=f"{_push(name)}, with a folder {TEST_SUBMIT} like {TEST}",
    )


def _below(folder: str, parts: Collection[str]) -> list[str]:
    return [path for path in parts if path.startswith(f"{folder}/")]


def _push(name: str) -> str:
    return f"nsml dataset push -f -l -e {EVALUATION} {name} PATH    by its owner"


def _refused(full: str, why: str, attempt: str) -> StateConflict:
    return StateConflict(f"{full} takes no submissions", why=why, attempt=attempt)
