"""The step that provides a session's image: what its user reads if there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.environments.errors import EnvironmentFailed, ImageUnavailable
from nodeagent.folders import ReplicaFolder
from nodeagent.replica.preparation_log import PreparationLog
from nodeagent.replica.preparation_steps import Draft, ImageHook, PreparationFailed
from nsml.common.clock import in_own_thread
from nsml.packages.requirements import HERE
from nsml.v1 import agents_pb2 as pb
from nsml.v1 import sessions_pb2 as sessions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

GONE = ImageUnavailable("image lab/gone:1 cannot be pulled")
FULL = EnvironmentFailed("image lab/gone:1 cannot be pulled: the node's disk is full")


@pytest.mark.parametrize(
    ("error", "spec", "has_advice"),
    [
        (GONE, sessions.SessionSpec(), True),
        (GONE, sessions.SessionSpec(image="lab/gone:1"), False),
        (GONE, sessions.SessionSpec(dockerfile="Dockerfile"), False),
        (FULL, sessions.SessionSpec(), False),
    ],
)
async def test_for_an_image_that_code_names_the_error_says_how_to_get_another(
    tmp_path: Path, error: EnvironmentFailed, spec: sessions.SessionSpec, *, has_advice: bool
) -> None:
    class Images:
        def resolve(self, *_: object) -> tuple[str, str]:
            return "lab/gone:1", ""

        def has_default_packages(self, *_: object) -> bool:
            return False

        def provide(self, *_: object, **__: object) -> str:
            raise error

        provide_built = provide

    class Answering:
        async def through(self, work: Callable[[], Awaitable[None]], **_: object) -> None:
            await work()

    folder = ReplicaFolder(tmp_path)
    folder.create()
    (folder.app / "setup.py").write_text("#nsml: lab/gone:1\n")
    assignment = pb.Assignment(owner_id="kim", spec=spec)
    draft = Draft(assignment, folder, PreparationLog(folder, lambda: None))
    hook: Any = ImageHook(Images(), None, in_own_thread, lambda **_: HERE, Answering())  # type: ignore[arg-type]
    with pytest.raises(PreparationFailed) as failed:
        await hook.prepare(draft)
    assert failed.value.cause == sessions.CAUSE_ENVIRONMENT_FAILED
    assert str(error) in str(failed.value)
    advice = "name another one with nsml run --image, or ask the node's administrator to replace it"
    assert (advice in str(failed.value)) is has_advice
