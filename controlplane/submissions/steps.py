"""Specs of the sessions that a submission consists of: one predicts, one evaluates, and they share nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from controlplane.domain.values import (
    DatasetVersion,
    Limits,
    Network,
    Priority,
    Resources,
    SessionSpec,
    SessionStage,
)
from controlplane.submissions.dataset_trees import PREDICTION_FOLDER
from nsml.spec.competition_datasets import TEST
from nsml.spec.nsml_arguments import without_fork_arguments

if TYPE_CHECKING:
    from controlplane.domain.values import InitialCheckpoint
    from controlplane.history.values import DatasetListing
    from controlplane.submissions.dataset_trees import SubmissionTrees

PAUSE_WITHIN_S: Final = 600.0
"""How long a program may take until it calls nsml.paused()."""
EVALUATE_SLACK_S: Final = 120.0
"""Beyond the time of the runs of an evaluation, which end themselves: the session's limit ends the wrapper."""
EVALUATE_RUNS: Final = 4
"""Most runs of one evaluation: public and private rows, each twice."""
PREDICT_ARGS: Final = ("--mode", "test", "--pause", "1")
EVALUATE_ARGV: Final = ("python", "-u", "-m", "nsml.evaluation")
EVALUATE_RESOURCES: Final = Resources(cpu_thousandths=1000, memory_bytes=2 << 30)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """What a board's settings allow each step; times in seconds."""

    predict_s: float
    evaluate_s: float
    prediction_bytes: int


def predict_spec(
    source: SessionSpec,
    *,
    submission_id: str,
    datasets: tuple[DatasetVersion, ...],
    initial: InitialCheckpoint,
    environment_lock: str,
    limits: StepLimits,
    folder: str,
    is_test: bool,
    batch: int = 0,
) -> SessionSpec:
    """Return the spec of the session that predicts: the source's program with its checkpoint, and without a network.

    `datasets`: with the tree for predictions first. `folder`: of the dataset's test inputs.
    """
    environment = {
        **source.environment,
        "NSML_PREDICTION_BYTES": str(limits.prediction_bytes),
        "NSML_PREDICT_S": _seconds(limits.predict_s),
        "NSML_TEST_FOLDER": folder,
        **({"NSML_BATCH": str(batch)} if batch else {}),
    }
    has_image = bool(source.image or source.dockerfile)
    return replace(
        source,
        args=(*without_fork_arguments(source.args), *PREDICT_ARGS) if source.entry else (),
        argv=() if source.entry else (*source.argv, *PREDICT_ARGS),
        datasets=datasets,
        replica_count=1,
        environment=environment,
        time_limit_s=PAUSE_WITHIN_S + limits.predict_s,
        idle_limit_s=0.0,
        retry_count=0,
        secrets=(),
        preemptible=False,
        network=Network.NONE,
        refresh_environment=False,
        knobs=(),
        labels={},
        initial_checkpoint=initial,
        after=(),
        keep_checkpoints="",
        environment_lock="" if has_image else environment_lock,
        output_datasets=(),
        log_metrics=(),
        keep_files=False,
        no_keep_files=True,
        keep_files_by_default=False,
        stage=SessionStage.PREDICT_TEST if is_test else SessionStage.PREDICT,
        submission_id=submission_id,
        launcher=None,
    )


def evaluate_spec(
    *,
    submission_id: str,
    listing: DatasetListing,
    trees: SubmissionTrees,
    participant: str,
    prediction: str,
    prediction_bytes: int,
    limits: StepLimits,
    folder: str,
    is_twice: bool = False,
) -> SessionSpec:
    """Return the spec of the session that evaluates: the dataset's own code on all of its files and the prediction.

    `prediction`: digest of its manifest. `is_twice`: run the evaluation twice, to see whether it is stable.
    """
    environment = {"NSML_EVALUATE_S": _seconds(limits.evaluate_s), "NSML_TEST_FOLDER": folder}
    if is_twice:
        environment["NSML_EVALUATE_TWICE"] = "1"
    whole = DatasetVersion(
        owner=listing.dataset.owner,
        name=listing.dataset.name,
        version=listing.version.number,
        digest=trees.whole,
        size_bytes=trees.whole_bytes,
    )
    predicted = DatasetVersion(
        owner=participant,
        name=PREDICTION_FOLDER,
        version=0,
        digest=prediction,
        folder=PREDICTION_FOLDER,
        size_bytes=prediction_bytes,
    )
    return SessionSpec(
        argv=EVALUATE_ARGV,
        bundle_digest=trees.code.digest,
        datasets=(whole, predicted),
        resources=EVALUATE_RESOURCES,
        environment=environment,
        time_limit_s=EVALUATE_RUNS * limits.evaluate_s + EVALUATE_SLACK_S,
        limits=Limits(),
        priority=Priority.NORMAL,
        network=Network.NONE,
        no_keep_files=True,
        stage=SessionStage.EVALUATE,
        submission_id=submission_id,
    )


def test_dataset(
    listing: DatasetListing, trees: SubmissionTrees, *, folder: str, is_test: bool
) -> DatasetVersion:
    """Return the dataset as a prediction gets it, mounted at `folder` below /data ("": its name)."""
    tree = trees.dry_run if is_test else trees.test
    return DatasetVersion(
        owner=listing.dataset.owner,
        name=listing.dataset.name,
        version=listing.version.number,
        digest=tree.digest,
        folder=folder,
        size_bytes=tree.size_bytes,
    )


def input_folder(trees: SubmissionTrees, *, is_test: bool) -> str:
    """Return the folder of the dataset with the inputs of a submission."""
    return trees.dry_run_folder if is_test else TEST


def _seconds(value: float) -> str:
    return f"{value:g}" if value < 1e6 else str(int(value))
