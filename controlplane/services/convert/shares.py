"""What accounts are ordered by, as the contract says it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.services.convert.times import duration
from nsml.v1 import sessions_pb2 as pb

if TYPE_CHECKING:
    from controlplane.domain.plan import FairShare
    from controlplane.operations.usage_ledger import Accounts


def share_message(share: FairShare, accounts: Accounts) -> pb.FairShare:
    """A fair share, and how far back it looks."""
    return pb.FairShare(
        account=share.account,
        held_gpus=share.held,
        lately_gpus=share.lately,
        weight=share.weight,
        value=share.value,
        half_life=duration(accounts.half_life_s) if accounts.half_life_s else None,
        is_partial=not accounts.is_known(share.account),
    )
