"""Checkpoints saved by sessions, and their durability."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import structlog

from controlplane.checkpoints.lost_uploads import MOST_WORDS, plain
from controlplane.checkpoints.retention import LOADING_S
from controlplane.domain.errors import (
    InvalidRequest,
    MissingBlobs,
    NotFound,
    StateConflict,
    TooLarge,
)
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.names import MOST_CHECKPOINT_NAME, check_digest
from controlplane.domain.values import Resume
from controlplane.history.values import Checkpoint, CheckpointState, CheckpointUse
from controlplane.state.lru import LruDict
from controlplane.state.progress import checkpoint_is_durable
from nsml.spec.labels import FORM_RULE, is_key

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from controlplane.content.content import Content
    from controlplane.core.compare_and_swap import SessionWriter
    from controlplane.domain.identity import Caller, NodeCaller
    from controlplane.domain.values import Session
    from controlplane.history.sql.checkpoint_marks import Marks
    from controlplane.history.sql.history import History
    from controlplane.history.values import Retired
    from controlplane.state.replica_rights import Rights
    from nsml.common.clock import Clock

NAMED: Final = 10
"""Max checkpoints named in an error."""
MOST_REMOVED: Final = 1_000
"""Max checkpoints removed per call."""
MOST_TAGS: Final = 1_000
"""Max tags of a session's checkpoints."""
_SHOWN: Final = 200
_LOADED: Final = 10_000

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """A node's report: a checkpoint's content is in the object store, or `why_lost`."""

    session_id: str
    attempt: int
    name: str
    digest: str
    size_bytes: int
    file_count: int
    saved_at: float
    why_lost: str = ""


MOST_HELD: Final = 1_000
"""Max copies on a node checked per call."""


class Checkpoints:
    """Lists, tags, removes and commits checkpoints.

    Args:
        changed: called with the session ID when a checkpoint became durable.
    """

    def __init__(
        self,
        *,
        history: History,
        content: Content,
        rights: Rights,
        writer: SessionWriter,
        clock: Clock,
        changed: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._changed = changed
        self._loaded: LruDict[tuple[str, str, str], float] = LruDict(_LOADED)
        """When a load of a checkpoint was last recorded (Unix s)."""
        self._clock = clock
        self._history = history
        self._writer = writer
        self._content = content
        self._rights = rights

    async def page(
        self, session: Session, *, after: tuple[float, str] | None, limit: int
    ) -> tuple[Checkpoint, ...]:
        """Return checkpoints of a session, oldest first, after this time and name."""
        return await self._history.catalogue.checkpoints(session.id, after=after, limit=limit)

    async def get(self, session: Session, name: str) -> Checkpoint:
        """Find by name, or else by tag; NotFound names the newest."""
        catalogue, marks = self._history.catalogue, self._history.checkpoint_marks
        found = await catalogue.checkpoint(session.id, name)
        if found is None and (tagged := await marks.tagged(session.id, name)) is not None:
            found = await catalogue.checkpoint(session.id, tagged)
        if found is None:
            names = await self._history.catalogue.newest_names(session.id, NAMED)
            raise NotFound(
                f"{session.name} has no checkpoint {name[:80]!r}",
                why=f"the newest are {', '.join(names)}" if names else "it has none at all",
                attempt=f"nsml model ls {session.name}" if names else "",
            )
        return found

    async def newest(self, session: Session) -> Checkpoint:
        """Return the checkpoint that a new attempt resumes from: the last durable one of the latest attempt with any.

        Ordered by attempt first, since clocks of nodes may differ.

        Raises:
            NotFound: there is none.
        """
        found = await self._history.catalogue.newest_durable(session.id)
        if found is None:
            raise NotFound(
                f"{session.name} has no checkpoint that is safe",
                attempt=f"nsml model ls {session.name}    what it has saved\n"
                f"nsml rerun {session.name}    begins anew",
            )
        return found

    async def begin_with(self, caller: Caller, session: Session) -> None:
        """Record a session's initial checkpoint as one of its own, without an attempt. Idempotent.

        So it is kept, counted and loaded like those that the session saves itself.

        Raises:
            NotFound: its content was removed.
        """
        initial = session.spec.initial_checkpoint
        if initial is None:
            return
        if await self._content.is_incomplete(caller, initial.digest):
            raise NotFound(
                f"checkpoint {initial.name!r} of {initial.session_name} is not kept any more",
                why=f"{session.name} was to begin with it",
            )
        listing = await self._content.listing(caller, initial.digest)
        saved = await self._history.catalogue.checkpoint(initial.session_id, initial.name)
        # Its name may have been saved again, or its session removed.
        is_it = saved is not None and saved.digest == initial.digest and not saved.content_saved_at
        await self._history.catalogue.put_checkpoint(
            Checkpoint(
                session_id=session.id,
                name=initial.name,
                saved_at=initial.saved_at,
                size_bytes=listing.size,
                file_count=listing.file_count,
                state=CheckpointState.DURABLE,
                digest=initial.digest,
                step=saved.step if saved is not None and is_it else None,
                summary=saved.summary if saved is not None and is_it else "{}",
            )
        )
        use = CheckpointUse(initial.name, session.id, self._clock.time())
        await self._history.checkpoint_marks.note_use(initial.session_id, use)

    async def loaded(self, session: Session, name: str, used_by: str) -> None:
        """Protect a checkpoint that a program of its own or another session is about to load.

        Frequent loads are recorded only now and then.
        """
        if used_by == session.id and not session.spec.keep_checkpoints:
            return  # it has no retention
        now, key = self._clock.time(), (session.id, name, used_by)
        noted = self._loaded.get(key)
        if noted is not None and now - noted < LOADING_S / 4:
            return
        if await self._history.checkpoint_marks.note_use(
            session.id, CheckpointUse(name, used_by, now)
        ):
            self._loaded.keep(key, now)

    async def _newest_kept(self, session: Session) -> Checkpoint | None:
        """Return the checkpoint to resume from, protected while it is loaded."""
        while (newest := await self._history.catalogue.newest_durable(session.id)) is not None:
            use = CheckpointUse(newest.name, session.id, self._clock.time())
            if not session.spec.keep_checkpoints or await self._history.checkpoint_marks.note_use(
                session.id, use
            ):
                break
        return newest

    async def resumed_from(self, caller: Caller, session: Session) -> Checkpoint:
        """Return the checkpoint that the placed attempt resumes from: the same for each replica.

        It is the newest at the first replica's request: others may save newer ones meanwhile.

        Raises:
            NotFound: it starts anew.
        """
        resume = _settled(session)
        if resume is None:
            newest = await self._newest_kept(session)
            if newest is None and session.spec.initial_checkpoint is not None:
                # The control plane that accepted the session died before it recorded this.
                await self.begin_with(caller, session)
                newest = await self._newest_kept(session)
            resume = Resume(attempt=session.attempt)
            if newest is not None:
                resume = replace(resume, checkpoint=newest.name, digest=newest.digest or "")
            resume = await self._settle(session, resume)
        if not resume.checkpoint:
            raise NotFound(f"{session.name} had no checkpoint that was safe")
        found = await self.get(session, resume.checkpoint)
        if found.digest == resume.digest:
            return found
        return replace(found, state=CheckpointState.DURABLE, digest=resume.digest)

    async def _settle(self, session: Session, resume: Resume) -> Resume:
        """Record and return it, unless another replica was first: then return that one."""

        def decide(current: Session) -> Session:
            is_other = current.attempt != session.attempt or _settled(current) is not None
            return current if is_other else replace(current, resume=resume)

        written = await self._writer.change(session.id, decide, is_counted=False)
        return (written and _settled(written)) or resume

    async def marks(self, session: Session) -> Marks:
        """Tags and uses of the checkpoints of a session."""
        return await self._history.checkpoint_marks.of(session.id)

    async def retired(self, session: Session) -> Retired:
        """Return number and size of those removed by retention."""
        return await self._history.checkpoint_marks.retired(session.id)

    async def tag(self, session: Session, name: str, tag: str) -> tuple[Checkpoint, str]:
        """Tag a checkpoint; return it, and the name of the one tagged before, "" if none.

        Raises:
            InvalidRequest: it is no tag.
            NotFound: there is no such checkpoint.
            StateConflict: a checkpoint has that name.
            TooLarge: the session has too many tags.
        """
        if not is_key(tag):
            raise InvalidRequest(f"{tag[:80]!r} is not a tag", why=f"a tag {FORM_RULE}")
        found = await self.get(session, name)
        marks = self._history.checkpoint_marks
        if await self._history.catalogue.checkpoint(session.id, tag) is not None:
            raise StateConflict(
                f"{session.name} has a checkpoint {tag!r}",
                why="a tag is a second name of a checkpoint",
                attempt="another tag",
            )
        before = await marks.tagged(session.id, tag)
        if not await marks.tag(session.id, tag, found.name, most=MOST_TAGS):
            await self.get(session, found.name)  # it may be gone by now
            raise TooLarge(f"the checkpoints of a session have at most {MOST_TAGS:,} tags")
        return found, before if before is not None and before != found.name else ""

    async def untag(self, session: Session, tag: str) -> str:
        """Remove a tag; return the name of its checkpoint.

        Raises:
            NotFound: no checkpoint has it.
        """
        name = await self._history.checkpoint_marks.tagged(session.id, tag)
        if name is None:
            tags = sorted((await self.marks(session)).tags)
            raise NotFound(
                f"no checkpoint of {session.name} has the tag {tag[:80]!r}",
                why=f"there are {', '.join(tags[:NAMED])}" if tags else "none has a tag",
                attempt=f"nsml model ls {session.name}",
            )
        await self._history.checkpoint_marks.untag(session.id, tag)
        return name

    async def remove(
        self, session: Session, names: Sequence[str], *, including_tagged: bool = False
    ) -> tuple[str, ...]:
        """Remove checkpoints by name or tag; return the names, oldest first.

        Raises:
            InvalidRequest: no names, or more than MOST_REMOVED.
            NotFound: one does not exist; none is removed.
            StateConflict: one is tagged, or a live session resumes from it; none is removed.
        """
        if not 0 < len(names) <= MOST_REMOVED:
            raise InvalidRequest(f"1 to {MOST_REMOVED:,} names of checkpoints at a time")
        each = [await self.get(session, name) for name in dict.fromkeys(names)]
        found = list({one.name: one for one in each}.values())
        names = [one.name for one in found]
        if not including_tagged:
            _check_untagged(await self.marks(session), names)
        if not session.state.is_ended and session.state is not SessionState.FINALIZING:
            newest = await self._history.catalogue.newest_durable(session.id)
            resume = _settled(session)
            if resume is not None and resume.checkpoint and resume.checkpoint in names:
                raise StateConflict(
                    f"{session.name} resumed from {resume.checkpoint!r}",
                    why=f"the session is {session.state.value}, and its replicas may still load it",
                    attempt="the others; this one when the session has ended",
                )
            if newest is not None and newest.name in names:
                raise StateConflict(
                    f"{newest.name!r} is the newest durable checkpoint of {session.name}",
                    why=f"the session is {session.state.value}, and resumes from it when it is moved",
                    attempt="the others; this one when the session has ended",
                )
        for one in found:
            await self._history.catalogue.delete_checkpoint(
                session.id, one.name, owner=session.owner
            )
        return tuple(one.name for one in sorted(found, key=lambda one: (one.saved_at, one.name)))

    async def removed_among(self, session_id: str, names: Sequence[str]) -> list[str]:
        """Return which of these, once durable, were removed: no program can load them any more."""
        asked = [one for one in dict.fromkeys(names[:MOST_HELD]) if "\0" not in one]
        if not asked:
            return []
        there = await self._history.catalogue.checkpoints_among(session_id, asked)
        return [one for one in asked if one not in there]

    async def commit(self, caller: NodeCaller, saved: SavedCheckpoint) -> None:
        """Record a checkpoint as durable or lost. Idempotent.

        Raises:
            NotFound: the session neither runs nor ran on the calling node.
            MissingBlobs: this node has not sent all of its content.
        """
        await self._rights.check(
            caller.node, saved.session_id, saved.attempt, joined_at=caller.joined_at
        )
        if not saved.name or len(saved.name.encode()) > MOST_CHECKPOINT_NAME:
            raise InvalidRequest(f"a checkpoint's name has 1 to {MOST_CHECKPOINT_NAME} bytes")
        if saved.why_lost:
            _log.warning(
                "checkpoint.lost",
                session=saved.session_id,
                node=caller.node,
                checkpoint=saved.name[:_SHOWN],
                reason=saved.why_lost[:_SHOWN],
            )
        elif not await self._content.may_use(
            caller, check_digest(saved.digest), session_id=saved.session_id
        ) or await self._content.is_incomplete(caller, saved.digest):
            raise MissingBlobs(f"checkpoint {saved.name!r} has not been sent completely")
        await self._history.catalogue.put_checkpoint(
            Checkpoint(
                session_id=saved.session_id,
                name=saved.name,
                saved_at=saved.saved_at,
                size_bytes=saved.size_bytes,
                file_count=saved.file_count,
                state=CheckpointState.LOST if saved.why_lost else CheckpointState.DURABLE,
                why_lost=plain(saved.why_lost)[:MOST_WORDS],
                digest=None if saved.why_lost else saved.digest,
                attempt=saved.attempt,
                node=caller.node,
            )
        )
        if not saved.why_lost:
            saved_at = min(saved.saved_at, self._clock.time())  # a node's clock may be ahead
            await self._writer.change(
                saved.session_id,
                lambda current: checkpoint_is_durable(current, saved.attempt, saved_at),
                is_counted=False,
            )
            self._changed(saved.session_id)


def _check_untagged(marks: Marks, names: Collection[str]) -> None:
    for tag, name in marks.tags.items():
        if name in names:
            raise StateConflict(
                f"checkpoint {name!r} has the tag {tag!r}",
                why="tagged checkpoints are kept",
                attempt=f"nsml model untag SESSION {tag}    first, or -f",
            )


def _settled(session: Session) -> Resume | None:
    """Return the recorded resume point of the current attempt."""
    resume = session.resume
    return resume if resume is not None and resume.attempt == session.attempt else None
