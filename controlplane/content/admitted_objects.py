"""The object store with limits: blobs of callers are charged to a payer, and refused at the store's free-space floor.

The platform's own blobs (archived logs) are put into the object store directly.
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
    """The user and project ("": none) charged for new blobs, and whether an agent sends them.

    Blobs sent by users are charged to a project once they are used.
    """

    user: str
    is_agent: bool
    project: str = ""


_NOBODY = Payer("", is_agent=False)
_payer: ContextVar[Payer] = ContextVar("payer")


def payer_of(state: LiveState, caller: Caller, session_id: str) -> Payer:
    """Return the payer of a caller's blobs.

    For an agent, it is the owner of the session, if this or the previous attempt ran on the node. Nobody pays for what
    a sealed session sends: its user could read hidden inputs from how much there is. Its agent sends one prediction,
    which counts for the dataset's owner once the submission has it.
    """
    match caller:
        case UserCaller(user=user):
            return Payer(user.name, is_agent=False)
        case NodeCaller(node=node):
            session = state.session(session_id)
            attempts = (session.attempt, session.attempt - 1) if session else ()
            is_its = session and any(node in nodes_of(session, one, None) for one in attempts)
            if session is None or not is_its or session.spec.is_sealed:
                return Payer("", is_agent=True)
            project = session.project or session.owner
            is_counted = state.project(project) is not None  # else its first count includes it
            return Payer(session.owner, is_agent=True, project=project if is_counted else "")
    return _NOBODY


class AdmittedObjects:
    """An `ObjectStore` with limits on puts; everything else is passed to the inner store.

    Blobs that are already stored count, too: the rest of an allowance must not reveal the blobs of
    other users.
    """

    def __init__(self, objects: ObjectStore, admission: Admission, state: LiveState) -> None:
        self._objects = objects
        self._admission = admission
        self._state = state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)

    def count_for(self, caller: Caller, session_id: str) -> None:
        """Set the payer of blobs put by the current call: see `payer_of`."""
        _payer.set(payer_of(self._state, caller, session_id))

    async def put(self, digest: str, data: bytes) -> None:
        """See ObjectStore."""
        await self.put_many({digest: data})

    async def put_many(self, blobs: Mapping[str, bytes | memoryview]) -> None:
        """See ObjectStore.

        Raises:
            LimitReached: it exceeds the user's limit per day.
            LowOnRoom: the store is at its free-space floor; Unavailable for agents.
        """
        payer = _payer.get(_NOBODY)
        sizes = [len(data) for data in blobs.values()]
        async with self._admission.uploading(
            payer.user, sizes, project=payer.project, is_agent=payer.is_agent
        ):
            await self._objects.put_many(blobs)
