"""Messages of the fair shares that order accounts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from controlplane.codec import encoder
from controlplane.domain.plan import FairShare
from controlplane.wire.times import duration
from nsml.v1 import sessions_pb2 as pb

if TYPE_CHECKING:
    from controlplane.state.charge_totals import Accounts


_SHARE: Final = encoder(
    FairShare,
    pb.FairShare,
    rename={"held": "held_gpus", "lately": "lately_gpus"},
    extra=("half_life", "is_partial"),
)


def share_message(share: FairShare, accounts: Accounts) -> pb.FairShare:
    """Return a fair share, with its half-life."""
    message = _SHARE.to_message(share)
    if accounts.half_life_s:
        message.half_life.CopyFrom(duration(accounts.half_life_s))
    message.is_partial = not accounts.is_known(share.account)
    return message
