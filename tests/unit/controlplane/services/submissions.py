"""A dataset that takes submissions, and a node that says what the programs of their steps would."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nsml.content.manifest import Manifest, decode
from nsml.spec import submission_exits as exits
from nsml.v1 import agents_pb2, artifacts_pb2, boards_pb2, datasets_pb2, resources_pb2, sessions_pb2
from tests.unit.controlplane.rig import Agent, Rig, Stubs, until
from tests.unit.controlplane.services.test_content import push, read, send, tree
from tests.unit.controlplane.services.test_rights import save

FILES = {
    "data_loader.py": b"def test_data_loader(root_path): ...",
    "evaluation.py": b"print(0.5)",
    "test/test_data": b"to predict",
    "test/test_label": b"what nobody may train on",
    "test_submit/test_data": b"to try",
    "test_submit/test_label": b"what it is",
    "train/train_data": b"to learn from",
}
OPENED = {"data_loader.py", "evaluation.py", "train/train_data"}
PARTS = ("test", "test/test_label", "test_submit", "test_submit/test_label")
HIDDEN = datasets_pb2.PART_ACCESS_HIDDEN
PUBLIC = resources_pb2.VISIBILITY_PUBLIC
OWN, NONE = resources_pb2.NETWORK_OWN, resources_pb2.NETWORK_NONE
SCORED, FAILED = boards_pb2.SUBMISSION_STATE_SCORED, boards_pb2.SUBMISSION_STATE_FAILED
_numbers = itertools.count()


async def pushed(
    who: Stubs,
    name: str = "digits",
    *,
    parts: tuple[str, ...] = PARTS,
    files: Mapping[str, bytes] = FILES,
) -> datasets_pb2.Dataset:
    """A dataset pushed as `nsml dataset push -l` does, or with other hidden parts and files."""
    manifest, blobs = tree(**files)
    await send(who, blobs)
    hidden = [datasets_pb2.DatasetPart(path=path, access=HIDDEN) for path in parts]
    return await push(who, name, manifest, parts=hidden, visibility=PUBLIC)


@dataclass
class Board:
    """A dataset of kim, a session of lee that trained on it, and the node where all of it runs."""

    rig: Rig
    kim: Stubs
    lee: Stubs
    node: Agent
    session: sessions_pb2.Session
    checkpoint: str

    @classmethod
    async def of(cls, rig: Rig, **spec: Any) -> Board:
        kim, lee = await rig.user("kim"), await rig.user("lee")
        await pushed(kim)
        node = await (await rig.agent("a", gpus=8, networks=[OWN, NONE])).connect()
        session = await trained(lee, node, **spec)
        digest = await save(node, session.id)
        return cls(rig, kim, lee, node, session, digest)

    async def submit(self, who: Stubs | None = None, **asked: Any) -> boards_pb2.Submission:
        asked = {"session": self.session.name, "request_id": f"q{next(_numbers)}", **asked}
        request = boards_pb2.CreateSubmissionRequest(**asked)
        return (await (who or self.lee).submissions.CreateSubmission(request)).submission

    async def get(self, submission_id: str, who: Stubs | None = None) -> boards_pb2.Submission:
        request = boards_pb2.GetSubmissionRequest(id=submission_id)
        return (await (who or self.lee).submissions.GetSubmission(request)).submission

    async def over(self, submission_id: str, who: Stubs | None = None) -> boards_pb2.Submission:
        async def is_over() -> boards_pb2.Submission | None:
            found = await self.get(submission_id, who)
            return found if found.state in {SCORED, FAILED} else None

        found: boards_pb2.Submission = await until(is_over, f"{submission_id} is over")
        return found

    async def step(self, stage: int, *, number: int = 1) -> agents_pb2.Assignment:
        """The assignment of the newest session of a stage, once there were so many."""
        seen: dict[str, agents_pb2.Assignment] = {}

        async def found() -> agents_pb2.Assignment | None:
            for one in self.node.orders.assignments if self.node.orders else ():
                if one.spec.stage == stage and one.replica.session_id not in self.ended:
                    seen[one.replica.session_id] = one
            return list(seen.values())[number - 1] if len(seen) >= number else None

        assignment: agents_pb2.Assignment = await until(found, f"a step of stage {stage}")
        return assignment

    @property
    def ended(self) -> set[str]:
        """Ids of the sessions of steps that `step` passes over."""
        return self.__dict__.setdefault("_ended", set())

    async def predict(self, *, is_test: bool = False, **end: Any) -> agents_pb2.Assignment:
        """Let the next prediction run, and end so; it succeeds with a prediction unless a cause is given."""
        stage = sessions_pb2.SESSION_STAGE_PREDICT
        if is_test:
            stage = sessions_pb2.SESSION_STAGE_PREDICT_TEST
        return await self._end(stage, exits.PREDICTION, **end)

    async def evaluate(self, score: str = "0.985", **end: Any) -> agents_pb2.Assignment:
        """Let the next evaluation run, and end so; it succeeds with this score unless a cause is given."""
        result = {"score": score, "rows": 100, **end.pop("result", {})}
        end.setdefault("files", {exits.RESULT: json.dumps(result).encode()})
        return await self._end(sessions_pb2.SESSION_STAGE_EVALUATE, exits.EVALUATION, **end)

    async def _end(
        self,
        stage: int,
        artifact: str,
        *,
        files: dict[str, bytes] | None = None,
        cause: str = "COMPLETED",
        code: int = 0,
    ) -> agents_pb2.Assignment:
        assignment = await self.step(stage)
        replica = assignment.replica
        self.ended.add(replica.session_id)
        await self.node.report(replica, "RUNNING")
        if cause == "COMPLETED":
            await self.save(replica.session_id, artifact, files or {artifact: b"7\n1\n"})
        await self.node.report(replica, "FINALIZED", cause=cause, code=code)
        return assignment

    async def save(self, session_id: str, name: str, files: dict[str, bytes]) -> str:
        """What an agent does with an artifact."""
        manifest, blobs = tree(**files)
        await send(self.node.stubs, blobs, session_id=session_id)
        request = artifacts_pb2.CommitArtifactRequest(
            session_id=session_id,
            attempt=1,
            folder=f"1-%artifact/{name}",
            name=name,
            digest=manifest.digest,
            size_bytes=manifest.size,
            file_count=len(files),
        )
        request.saved_at.GetCurrentTime()
        await self.node.stubs.artifacts.CommitArtifact(request)
        return manifest.digest


async def trained(who: Stubs, node: Agent, **spec: Any) -> sessions_pb2.Session:
    """A session on the dataset that runs on the node."""
    spec.setdefault("datasets", [sessions_pb2.DatasetReference(name="kim/digits")])
    session = await who.submit("python", "main.py", **spec)

    async def placed() -> agents_pb2.Assignment | None:
        found = node.orders.assignments if node.orders else ()
        return next((one for one in found if one.replica.session_id == session.id), None)

    assignment = await until(placed, f"{session.name} is placed")
    await node.report(assignment.replica, "RUNNING")
    return session


async def files_of(who: Stubs, root: str) -> dict[str, bytes]:
    """The files of a tree of small files that somebody may read."""
    manifest: Manifest = decode((await read(who, root))[root], digest=root)
    got = await read(who, root, root, *manifest.blobs())
    return {one.path: b"".join(got[ref.digest] for ref in one.chunks) for one in manifest.entries}
