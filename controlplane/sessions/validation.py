"""Validation of submissions, independent of the cluster."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.datasets.references import DatasetReference
from controlplane.domain.errors import InvalidRequest, TooLarge
from controlplane.domain.limits import TimeLimits
from controlplane.domain.models import alternatives_of, words_of
from controlplane.domain.names import (
    MOST_CHECKPOINT_NAME,
    check_digest,
    check_request_id,
    check_secret,
)
from controlplane.domain.policy import check_visibility
from controlplane.domain.program_changes import COUNTERS
from controlplane.domain.values import (
    WHOLE_DEVICE,
    Limits,
    Priority,
    Resources,
    SessionSpec,
    Visibility,
)
from controlplane.projects.projects import check_keep
from controlplane.scheduler.fit import DEFAULT_MEMORY_BYTES
from nsml.common.units import duration_text
from nsml.log_metrics import patterns
from nsml.packages import dockerfile
from nsml.spec import echo, git_facts, knobs, labels, output_datasets, variables
from nsml.spec.images import RULE, is_reference, whole_reference, why_never_pulled
from nsml.spec.request_limits import (
    LEAST_DISK_BYTES,
    LEAST_IDLE_S,
    LEAST_MEMORY_BYTES,
    LEAST_SHM_BYTES,
    LONGEST_GRACE_S,
    LONGEST_S,
    MOST_PROCESSES,
    MOST_RETRIES,
    meant_words,
)
from nsml.spec.run_flags import DEFAULT_ENTRY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from controlplane.domain.identity import User
    from controlplane.domain.program_changes import KnobValue
    from controlplane.domain.values import After, GitFacts, InitialCheckpoint, OriginKind

RETRIED_LOST_AFTER_S: Final = 600.0
"""Default lost_after of sessions with retries."""

MOST_DATASETS: Final = 16
MOST_SECRETS: Final = 32
MOST_AFTER: Final = 32
MOST_LIMIT_BYTES: Final = 1 << 60
MOST_WORDS_BYTES: Final = 32 << 10
MOST_ENVIRONMENT_BYTES: Final = variables.MOST_BYTES
"""With MOST_WORDS_BYTES it bounds a spec, and so a node's orders: one message of at most 4 MiB."""

MOST_NAME: Final = 80
"""Characters in the name of a GPU model or a pod."""

MOST_MEMO_BYTES: Final = 4 << 10
MOST_REASON_BYTES: Final = 1 << 10


class OriginReference(NamedTuple):
    """The source session of another one, as named by its user."""

    kind: OriginKind
    session: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A submitted session. `digest` is of the request; `origin` is an unresolved reference.

    `spec` is as requested: without the datasets, which are unresolved too, and with 0 or "" for a default. Its
    initial checkpoint is unresolved as well: `session_id` is a reference, `name` "" for the newest.
    """

    owner: User
    request_id: str
    digest: bytes
    spec: SessionSpec
    datasets: tuple[DatasetReference, ...] = ()
    no_queue: bool = False
    memo: str = ""
    visibility: Visibility = Visibility.PRIVATE
    project: str = ""
    command: tuple[str, ...] = ()
    origin: OriginReference | None = None
    git: GitFacts | None = None


def validated(submission: Submission, limits: TimeLimits) -> SessionSpec:
    """Return the spec with defaults filled in; its datasets and capacity are still to be checked.

    Args:
        submission: the request.
        limits: of the priority classes.

    Raises:
        InvalidRequest, TooLarge: it is malformed, or over a limit.
    """
    check_request_id(submission.request_id)
    check_memo(submission.memo)
    check_visibility(submission.visibility, submission.owner.team)
    _check_git(submission.git)
    _check_words(submission.command, "command line")
    if len(submission.datasets) > MOST_DATASETS:
        raise TooLarge(f"a session has at most {MOST_DATASETS} datasets")
    if len({one.folder or one.name for one in submission.datasets}) != len(submission.datasets):
        raise InvalidRequest(
            "two datasets of one name would be mounted at the same place",
            attempt="nsml run -d NAME@1=OTHER ...    mounts it at /data/OTHER",
        )
    spec = replace(
        submission.spec,
        output_datasets=_check_outputs(submission.spec.output_datasets, submission.owner.name),
    )
    return _validated(spec, limits)


def _validated(spec: SessionSpec, limits: TimeLimits) -> SessionSpec:
    _check_program(spec)
    _check_resources(spec.resources)
    _check_places(spec)
    _check_limits(spec.limits)
    _check_shm(spec.limits.shm_bytes, spec.resources.memory_bytes)
    _check_environment(spec.environment)
    _check_secrets(spec)
    _check_labels(spec.labels)
    _check_knobs(spec.knobs)
    _check_log_metrics(spec.log_metrics)
    _check_initial_checkpoint(spec.initial_checkpoint)
    _check_after(spec.after)
    if spec.environment_lock:
        check_digest(spec.environment_lock)
    if spec.keep_files and spec.no_keep_files:
        raise InvalidRequest("its files are to be kept, and not to be kept")
    if spec.image and not is_reference(spec.image):
        raise InvalidRequest(f"{spec.image[:80]!r} is not the name of an image", why=RULE)
    if spec.image and (why := why_never_pulled(spec.image)):
        raise InvalidRequest(f"image {spec.image[:80]!r} cannot be used", why=why)
    check_dockerfile(spec)
    if not 0 <= spec.retry_count <= MOST_RETRIES:
        raise InvalidRequest(
            f"{spec.retry_count} retries: at most {MOST_RETRIES}",
            attempt=f"nsml run --retry {MOST_RETRIES} ...",
        )
    limit_s = _check_span(
        spec.time_limit_s, "time limit", LONGEST_S, "nsml run --time-limit {} ..."
    )
    lost_after_s = spec.lost_after_s or (RETRIED_LOST_AFTER_S if spec.retry_count else 0.0)
    return replace(
        spec,
        entry=spec.entry if spec.argv else spec.entry or DEFAULT_ENTRY,
        replica_count=spec.replica_count or 1,
        image=whole_reference(spec.image) if spec.image else "",
        time_limit_s=_within_class(limit_s, spec.priority, limits),
        idle_limit_s=_check_idle_limit(spec.idle_limit_s),
        grace_s=check_grace(spec.grace_s),
        lost_after_s=_check_span(lost_after_s, "lost_after", LONGEST_S, "{}, or leave it out"),
        gpu_model=" ".join(spec.gpu_model.split()),
        keep_checkpoints=check_keep(spec.keep_checkpoints, of_session=True),
    )


def _check_outputs(texts: Sequence[str], user: str) -> tuple[str, ...]:
    """Return the output datasets in their text form, without owners."""
    try:
        found = [output_datasets.output_dataset(text) for text in texts]
    except ValueError as error:
        raise InvalidRequest(f"no output dataset: {error}") from error
    for one in found:
        if one.owner not in {"", user}:
            raise InvalidRequest(
                f"a session of {user} makes no version of {one.owner}/{one.name}",
                why="an output dataset belongs to the session's user",
                attempt=f"nsml run --output-dataset {one.name} ...",
            )
    if len({one.name for one in found}) < len(found) or len(found) > output_datasets.MOST:
        raise InvalidRequest(
            f"a session has at most {output_datasets.MOST} output datasets, of different names"
        )
    return tuple(str(one._replace(owner="")) for one in found)


def _check_log_metrics(texts: Sequence[str]) -> None:
    try:
        patterns.check_all(texts)
    except ValueError as error:
        message, _, why = str(error).partition(": ")
        raise InvalidRequest(
            message, why=why, attempt=f"nsml run --metric auto --metric '{patterns.EXAMPLE}' ..."
        ) from error


def check_supposed(spec: SessionSpec, limits: TimeLimits) -> SessionSpec:
    """Validate the changed spec of a submitted session; return it with its time limit."""
    _check_resources(spec.resources)
    _check_places(spec)
    limit_s = _check_span(spec.time_limit_s, "time limit", LONGEST_S, "--what-if time-limit={}")
    return replace(spec, time_limit_s=_within_class(limit_s, spec.priority, limits))


def check_grace(seconds: float, attempt: str = "nsml run --grace {} ...") -> float:
    """Validate a grace period; `attempt` is the advice, formatted with the longest one."""
    return _check_span(seconds, "grace period", LONGEST_GRACE_S, attempt)


def check_reason(reason: str) -> str:
    """Return the reason; TooLarge if it is too long."""
    if len(reason.encode()) > MOST_REASON_BYTES:
        raise TooLarge(f"a reason has at most {MOST_REASON_BYTES} bytes")
    return reason


def check_memo(memo: str) -> str:
    """Return the memo if it is short enough and has no NUL."""
    if len(memo.encode()) > MOST_MEMO_BYTES:
        raise TooLarge(f"a memo has at most {MOST_MEMO_BYTES} bytes")
    if "\0" in memo:
        raise InvalidRequest("a memo has no NUL character")
    return memo


def _check_git(git: GitFacts | None) -> None:
    if git is None:
        return
    if not git_facts.is_commit(git.commit):
        raise InvalidRequest(f"{git.commit[:80]!r} is not the name of a commit")
    if not git_facts.is_branch(git.branch):
        raise InvalidRequest(f"{git.branch[:80]!r} is not the name of a branch")


def _check_initial_checkpoint(asked: InitialCheckpoint | None) -> None:
    if asked is None:
        return
    if len(asked.name.encode()) > MOST_CHECKPOINT_NAME:
        raise InvalidRequest(f"a checkpoint's name has 1 to {MOST_CHECKPOINT_NAME} bytes")
    if asked.digest:
        check_digest(asked.digest)


def _check_after(asked: tuple[After, ...]) -> None:
    if len(asked) > MOST_AFTER:
        raise TooLarge(f"a session starts after at most {MOST_AFTER} others")


def _check_program(spec: SessionSpec) -> None:
    if spec.argv and (spec.entry or spec.args):
        raise InvalidRequest("a session has an entry with arguments, or a plain command line")
    if spec.argv and spec.launcher:
        raise InvalidRequest(
            "a launcher starts an entry, and the session has a plain command line",
            attempt=f"nsml run --launch {spec.launcher.lower()} -e train.py",
        )
    _check_words((spec.entry, *spec.args), "entry and its arguments")
    _check_words(spec.argv, "command line")
    if spec.bundle_digest:
        check_digest(spec.bundle_digest)
    if spec.argv:
        if not spec.argv[0]:
            raise InvalidRequest("the command line names no program")
        return
    entry = PurePosixPath(spec.entry or DEFAULT_ENTRY)
    if entry.is_absolute() or ".." in entry.parts or "\0" in spec.entry or "\\" in spec.entry:
        raise InvalidRequest(f"{spec.entry[:80]!r} is not a file inside the code's folder")
    if not spec.bundle_digest:
        raise InvalidRequest(
            "an entry needs code", why="no bundle was named", attempt="a plain command line"
        )


def _check_words(words: Iterable[str], what: str) -> None:
    words = tuple(words)
    if sum(len(word.encode()) + 1 for word in words) > MOST_WORDS_BYTES:
        raise TooLarge(f"the {what} may have at most {MOST_WORDS_BYTES} bytes")
    if any("\0" in word for word in words):
        raise InvalidRequest(f"the {what} may not have a NUL character")


def _check_resources(resources: Resources) -> None:
    gpu = resources.gpu_thousandths
    if gpu > WHOLE_DEVICE and gpu % WHOLE_DEVICE:
        raise InvalidRequest(
            f"{gpu / WHOLE_DEVICE:g} GPUs",
            why="a share is of one device; more than one GPU is a whole number of them",
            attempt=f"nsml run -g {gpu // WHOLE_DEVICE} ...\nnsml run -g {gpu // WHOLE_DEVICE + 1} ...",
        )
    if 0 < resources.memory_bytes < LEAST_MEMORY_BYTES:
        raise InvalidRequest(
            f"{resources.memory_bytes} bytes of memory",
            why=f"no program runs in less than {LEAST_MEMORY_BYTES >> 20} MiB",
            attempt=meant_words(resources.memory_bytes),
        )


def _check_places(spec: SessionSpec) -> None:
    """Check the GPU model and pod: printable names; a model needs GPUs and meaningful words."""
    for name, what in ((spec.gpu_model, "GPU model"), (spec.pod, "pod")):
        if len(name) > MOST_NAME or not name.isprintable():
            raise InvalidRequest(f"{name[:80]!r} is not the name of a {what}")
    if not spec.gpu_model:
        return
    if not all(words_of(one) for one in alternatives_of(spec.gpu_model)):
        raise InvalidRequest(
            f"{spec.gpu_model!r} is not the name of a GPU model",
            why="it, or one of those that it names, has no word that a model could have",
            attempt="nsml node ls -o wide",
        )
    if not spec.resources.gpu_thousandths:
        raise InvalidRequest(
            f"GPU model {spec.gpu_model}, and no GPU",
            attempt="-g 1, or no GPU model",
        )


def _check_limits(limits: Limits) -> None:
    if limits.disk_bytes and not LEAST_DISK_BYTES <= limits.disk_bytes <= MOST_LIMIT_BYTES:
        raise InvalidRequest(
            f"a disk limit of {limits.disk_bytes} bytes",
            why=f"it is {LEAST_DISK_BYTES >> 20} MiB to {MOST_LIMIT_BYTES >> 60} EiB",
            attempt=_meant(limits.disk_bytes, LEAST_DISK_BYTES),
        )
    if limits.shm_bytes and not LEAST_SHM_BYTES <= limits.shm_bytes <= MOST_LIMIT_BYTES:
        raise InvalidRequest(
            f"shared memory of {limits.shm_bytes} bytes",
            why=f"it is {LEAST_SHM_BYTES >> 20} MiB to {MOST_LIMIT_BYTES >> 60} EiB",
            attempt=_meant(limits.shm_bytes, LEAST_SHM_BYTES),
        )
    if limits.process_count > MOST_PROCESSES:
        raise InvalidRequest(
            f"{limits.process_count} processes", why=f"at most {MOST_PROCESSES}: Linux has no more"
        )


def _meant(asked: int, least: int) -> str:
    return meant_words(asked) if asked < least else "leave it out for the node's default"


def _check_shm(shm_bytes: int, memory_bytes: int) -> None:
    """Refuse more shared memory than memory: it counts as memory."""
    most = memory_bytes or DEFAULT_MEMORY_BYTES
    if shm_bytes <= most:
        return
    asked = f"{shm_bytes / 1e9:.12g} GB of shared memory"
    if memory_bytes:
        raise InvalidRequest(
            f"{asked} in {most / 1e9:.12g} GB of memory",
            why="shared memory is a part of the memory",
            attempt="more memory, or less shared memory",
        )
    raise InvalidRequest(
        f"{asked}, but no memory",
        why=f"shared memory is part of the memory, and without --memory a session gets {most / 1e9:.12g} GB at most",
        attempt="nsml run --memory SIZE",
    )


def check_dockerfile(spec: SessionSpec) -> None:
    """Raise InvalidRequest unless its Dockerfile, if any, is a file of the code, without an image or a lock."""
    if spec.build_arguments and not spec.dockerfile:
        raise InvalidRequest("build arguments without a Dockerfile", attempt="--dockerfile PATH")
    if not spec.dockerfile:
        return
    if spec.image:
        raise InvalidRequest("an image and a Dockerfile", why="a session runs in one image")
    if spec.environment_lock:
        raise InvalidRequest(
            "a lock of packages and a Dockerfile", why="the Dockerfile says what is installed"
        )
    if not spec.bundle_digest:
        raise InvalidRequest("a Dockerfile without code", why="it is a file of the code")
    if not dockerfile.is_path(spec.dockerfile):
        raise InvalidRequest(f"{spec.dockerfile[:80]!r} is not the path of a file in the code")
    if why := dockerfile.arguments_error(spec.build_arguments):
        raise InvalidRequest("the build arguments are not allowed", why=why)


def _check_environment(environment: Mapping[str, str]) -> None:
    for name, value in environment.items():
        if name == echo.VARIABLE:
            _check_echo(value)
        else:
            _check_variable(name)
        if "\0" in value:
            raise InvalidRequest(f"the value of {name[:80]} has a NUL character")
    if variables.size_of(environment) > MOST_ENVIRONMENT_BYTES:
        raise TooLarge(f"the environment may have at most {MOST_ENVIRONMENT_BYTES} bytes")


def _check_echo(value: str) -> None:
    try:
        echo.echo_of(value)
    except ValueError as error:
        message, _, why = str(error).partition(": ")
        raise InvalidRequest(
            message, why=why, attempt="nsml run --echo wandb,tensorboard ..."
        ) from error


def _check_secrets(spec: SessionSpec) -> None:
    if len(spec.secrets) > MOST_SECRETS:
        raise TooLarge(f"a session has at most {MOST_SECRETS} secrets")
    taken = set(spec.environment)
    for use in spec.secrets:
        check_secret(use.name)
        _check_variable(use.variable)
        if use.variable in variables.JOINED:
            raise InvalidRequest(f"{use.variable} cannot be a secret", attempt="another variable")
        if use.variable in taken:
            raise InvalidRequest(
                f"the variable {use.variable[:80]} is given twice",
                why="as a plain one and as a secret, or as two secrets",
                attempt="another variable for the secret: NAME=VARIABLE",
            )
        taken.add(use.variable)


def _check_labels(given: Mapping[str, str]) -> None:
    if len(given) > labels.MOST_LABELS:
        raise TooLarge(f"{len(given)} labels: at most {labels.MOST_LABELS}")
    for key, value in given.items():
        if not labels.is_key(key):
            raise InvalidRequest(f"{key[:80]!r} is not the key of a label", why=labels.KEY_RULE)
        if why := labels.value_error(value):
            raise InvalidRequest(f"{value[:80]!r} is not the value of a label", why=f"{key}: {why}")


def _check_knobs(given: tuple[KnobValue, ...]) -> None:
    if len(given) > knobs.MOST_GIVEN:
        raise TooLarge(f"{len(given)} values of knobs: at most {knobs.MOST_GIVEN}")
    for one in given:
        check_knob(one.name, one.value)
        if one.counter and one.counter not in COUNTERS:
            raise InvalidRequest(
                f"{one.counter[:80]!r} is no counter", why=f"one of {', '.join(COUNTERS)}"
            )
        if one.at is not None and one.at > knobs.MOST_STEP:
            raise InvalidRequest(f"there is no step {one.at}")


def check_knob(name: str, value: str) -> None:
    """Raise InvalidRequest unless it is the name of a knob with a value in JSON."""
    if not knobs.is_name(name):
        raise InvalidRequest(f"{name[:80]!r} is not the name of a knob", why=knobs.NAME_RULE)
    if why := knobs.value_error(value):
        raise InvalidRequest(f"{value[:80]!r} is no value for the knob {name}", why=why)


def _check_variable(name: str) -> None:
    if not variables.is_name(name):
        raise InvalidRequest(f"{name[:80]!r} is not the name of an environment variable")
    if variables.is_reserved(name):
        raise InvalidRequest(f"{name[:80]} is set by the platform", attempt="another name")


def _within_class(seconds: float, priority: Priority, limits: TimeLimits) -> float:
    """Return the time limit for this class, the class's own by default; 0 is none."""
    most = limits.get(priority, 0.0)
    if not most:
        return seconds
    if seconds > most:
        name, longest = priority.name.lower(), duration_text(most)
        raise InvalidRequest(
            f"a time limit of {duration_text(seconds)}",
            why=f"a session of the class {name} runs for {longest} at most",
            attempt=f"nsml run --time-limit {longest} ...",
        )
    return seconds or most


def _check_idle_limit(seconds: float) -> float:
    if 0 < seconds < LEAST_IDLE_S:
        raise InvalidRequest(
            f"an idle limit of {duration_text(seconds)}",
            why=f"{duration_text(LEAST_IDLE_S)} is the shortest",
            attempt=f"--idle-limit {duration_text(LEAST_IDLE_S)}",
        )
    return _check_span(seconds, "idle limit", LONGEST_S, "--idle-limit {}")


def _check_span(seconds: float, what: str, most: float, attempt: str) -> float:
    if 0 <= seconds <= most:
        return seconds
    is_too_long = most < seconds < math.inf
    longest = duration_text(most)
    raise InvalidRequest(
        f"a {what} of {duration_text(seconds) if is_too_long else f'{seconds:g} s'}",
        why=f"{longest} is the longest" if is_too_long else f"it is 0s to {longest}",
        attempt=attempt.format(longest),
    )
