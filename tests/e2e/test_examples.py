"""The examples of NSML's eras, on a platform that runs: they train, are submitted, and get their scores."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from nsml.spec.images import asked_image
from tests.e2e.platforms import end_all, platform_of, without_its_images
from tests.e2e.programs import wait_for
from tests.engines import required_image
from tests.support.in_process import Platform
from tests.support.nsml_examples import ALL, Example

LONG_S = 240.0
"""Six trainings with environments of their own, and seven submissions of two sessions each."""
DRY, FORKED = "bikes", "shapes"
"""The example that has a small split, and the one that goes on from a checkpoint."""
SOME = tuple(one for one in ALL if one.name in {"houses", DRY, FORKED})
"""One of each way to hand over what is hidden, to evaluate it, and to choose a checkpoint."""
IMAGES = {
    one.name: asked_image([("setup.py", (one.folder / "setup.py").read_text())]) for one in ALL
}
"""What each example names after `#nsml:`."""


class Scored:
    """Examples on one platform, trained and submitted at once."""

    def __init__(
        self, platform: Platform, level: str, examples: Sequence[Example], folder: Path
    ) -> None:
        self._platform = platform
        self.level = level
        self.examples = examples
        for one in examples:
            made = one.make_dataset(folder / one.name)
            platform.nsml("dataset", "push", "-l", one.name, str(made))
            better = "--max" if one.untrained < one.least else "--min"
            platform.nsml("board", "set", one.name, better)
        sessions = {one.name: self._run(one) for one in examples}
        self.logs = {name: self._succeeded(session) for name, session in sessions.items()}
        words = f"--epochs 0 --from_session {sessions[FORKED]} --from_checkpoint last"
        forked = next(one for one in examples if one.name == FORKED)
        sessions[FORKED] = self._run(forked, "-a", words)
        self._succeeded(sessions[FORKED])
        self.test = self._submit("-t", sessions[DRY], "6")
        self.submissions = {
            one.name: self._submit(sessions[one.name], one.checkpoint) for one in examples
        }

    def _run(self, example: Example, *words: str) -> str:
        done = self._platform.nsml(
            *("run", "-d", example.name, "-g", "0", "-o", "name", *words), cwd=example.folder
        )
        return done.stdout.split()[-1]

    def _succeeded(self, name: str) -> str:
        """Wait for the end of a session; what it wrote."""

        def ended() -> Any:
            items = self._platform.json("ps", "-a")["items"]
            one = next(item for item in items if item["name"] == name)
            return one["ended_at"] and one

        found = wait_for(ended, timeout_s=LONG_S, what=f"{name} has ended")
        log = self._platform.nsml("logs", name).stdout
        assert found["state"] == "SUCCEEDED", log
        return log

    def _submit(self, *words: str) -> str:
        return self._platform.nsml("submit", "--no-wait", "-o", "name", *words).stdout.split()[-1]

    def ended(self, submission: str) -> Any:
        """A submission, once it is over."""

        def look() -> Any:
            found = self._platform.json("submission", "info", submission)
            return found if found["state"] in {"SCORED", "FAILED"} else None

        return wait_for(look, timeout_s=LONG_S, what=f"submission {submission} is over")

    def types(self) -> set[str]:
        """The types of all sessions, as NSML lists them."""
        listed = self._platform.nsml("ps", "-a", environment={"NSML_STYLE": "nsml"}).stdout
        return {line.split()[-1] for line in listed.splitlines()[2:]}

    def board(self, name: str) -> Any:
        """The entries of a dataset's board."""
        return self._platform.json("dataset", "board", name)["items"]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("processes", SOME), id="processes"),
        pytest.param(("processes", ALL), marks=pytest.mark.variant, id="all-in-processes"),
        pytest.param(("containers", ALL), marks=pytest.mark.variant, id="all-in-containers"),
    ],
)
def scored(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scored]:
    level, examples = request.param
    platform = platform_of(level)
    if level == "containers":
        _replace_images(platform)
    with without_its_images(platform) as running:
        made = Scored(running, level, examples, tmp_path_factory.mktemp("examples"))
        yield made
        for one in (made.test, *made.submissions.values()):
            made.ended(one)
        end_all(running, level)


def _replace_images(platform: Platform) -> None:
    """Have NSML's images replaced on its node, as an administrator does: no registry has all of them any more."""
    named = {one for one in IMAGES.values() if one and not one.startswith("nsml/default_ml")}
    lines = [f"{json.dumps(one)} = {json.dumps(required_image())}" for one in sorted(named)]
    data = platform.folder / "data"
    data.mkdir(mode=0o700)
    (data / "agent.site.toml").write_text("\n".join(["[image_aliases]", *lines, ""]))


@pytest.mark.long("it waits for all trainings and for a submission of each")
def test_each_is_trained_submitted_and_scored(scored: Scored) -> None:
    for example in scored.examples:
        found = scored.ended(scored.submissions[example.name])
        assert found["state"] == "SCORED", (
            f"{found['cause']}: {found['message']}; {found['evaluation_output']}"
        )
        assert example.least <= found["score"] <= example.most
        (entry,) = [one for one in scored.board(example.name) if one["score"] is not None]
        assert (entry["rank"], entry["score"]) == (1, found["score"])
        assert entry["checkpoint"] == example.checkpoint


@pytest.mark.long("it may wait for all trainings")
def test_logs_say_what_became_of_the_images_that_code_names(scored: Scored) -> None:
    said = "is not used: this node runs programs without containers"
    if scored.level == "containers":
        said = f"is retired: {required_image()} takes its place"
    for example in scored.examples:
        assert f"image {IMAGES[example.name]} {said}" in scored.logs[example.name]


@pytest.mark.long("it may wait for all trainings")
def test_a_dry_run_uses_the_small_split(scored: Scored) -> None:
    found = scored.ended(scored.test)
    assert found["is_test"]
    assert found["state"] == "SCORED", (
        f"{found['cause']}: {found['message']}; {found['evaluation_output']}"
    )
    assert len([one for one in scored.board(DRY) if one["score"] is not None]) <= 1


@pytest.mark.long("it may wait for all trainings")
def test_sessions_are_listed_as_in_nsml(scored: Scored) -> None:
    for submission in (scored.test, *scored.submissions.values()):
        scored.ended(submission)
    assert {"normal", "submit", "submit(test)"} <= scored.types()
