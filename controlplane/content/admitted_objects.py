"""The object store as callers fill it: what they send counts for somebody, and stops above the store's floor.

What the platform itself puts there (archived logs) goes to the object store as it is.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from controlplane.domain.identity import Caller, NodeCaller, UserCaller
from controlplane.state.replica_rights import nodes_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from controlplane.limits.admission import Admission
    from controlplane.objects.interface import ObjectStore
    from controlplane.state.live_state import LiveState


class Payer(NamedTuple):
    """Whose allowance new blobs count for, and for which project ("": nobody's), and whether an agent sends them.

    What users send counts for a project when something is made of it.
    """

    user: str
    is_agent: bool
    project: str = ""


_NOBODY = Payer("", is_agent=False)
_payer: ContextVar[Payer] = ContextVar("payer")


def payer_of(state: LiveState, caller: Caller, session_id: str) -> Payer:
    """For whom what a caller sends counts.

    Of an agent that is the owner of the session whose files they are, where it runs or ran on that node.
    """
    match caller:
        case UserCaller(user=user):
            return Payer(user.name, is_agent=False)
        case NodeCaller(node=node):
            session = state.session(session_id)
            attempts = (session.attempt, session.attempt - 1) if session else ()
            is_its = session and any(node in nodes_of(session, one, None) for one in attempts)
            if session is None or not is_its:
                return Payer("", is_agent=True)
            project = session.project or session.owner
            is_counted = state.project(project) is not None  # else its first count has all of it
            return Payer(session.owner, is_agent=True, project=project if is_counted else "")
    return _NOBODY


class AdmittedObjects:
    """An `ObjectStore` whose puts are asked of the admission first; all else is the inner store's.

    Every blob that is sent counts, also one that is there already: what is left of an allowance must not tell what
    others have stored.
    """

    def __init__(self, objects: ObjectStore, admission: Admission, state: LiveState) -> None:
        self._objects = objects
        self._admission = admission
        self._state = state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)

    def count_for(self, caller: Caller, session_id: str) -> None:
        """Say for whom what is put in the current call counts: see `payer_of`."""
        _payer.set(payer_of(self._state, caller, session_id))

    async def put(self, digest: str, data: bytes) -> None:
        """See ObjectStore."""
        await self.put_many({digest: data})

    async def put_many(self, blobs: Mapping[str, bytes | memoryview]) -> None:
        """See ObjectStore.

        Raises:
            LimitReached: it is more than the user may send in a day.
            LowOnRoom: the store has no room above its floor; Unavailable for agents.
        """
        payer = _payer.get(_NOBODY)
        sizes = [len(data) for data in blobs.values()]
        async with self._admission.uploading(
            payer.user, sizes, project=payer.project, is_agent=payer.is_agent
        ):
            await self._objects.put_many(blobs)
