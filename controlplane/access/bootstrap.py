"""First credentials of a new platform: an administrator, a local agent's token.

Secrets are in files that only the owner of the data folder can read. That owner is trusted
anyway: if a file is lost or its token is no longer valid, the next start writes another. A token
that others could read is revoked.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from controlplane.access.accounts import DAY_S, LONGEST_TOKEN_LIFE_S, Accounts
from controlplane.access.files import Exposed, read_private, write_private
from controlplane.access.secret import parse_secret
from controlplane.domain.errors import AlreadyExists, NameReserved
from controlplane.domain.identity import NodeCaller, Role, UserCaller
from controlplane.domain.policy import ADMINISTER, ALLOW, PLATFORM, may

if TYPE_CHECKING:
    from controlplane.access.accounts import IssuedToken
    from controlplane.access.identities import Identities
    from controlplane.access.secret import Secret
    from controlplane.domain.identity import Caller, User

ADMIN_TOKEN = "admin.token"  # noqa: S105 - a file name
NODE_TOKEN = "node.token"  # noqa: S105

_ADMIN_LIFE_S = LONGEST_TOKEN_LIFE_S - DAY_S

_log = structlog.get_logger()


async def ensure_first_admin(accounts: Accounts, name: str) -> User | None:
    """Create the first administrator if there is no user at all; otherwise return None."""
    if await accounts.list_users():
        return None
    try:
        return await accounts.create_user(name, Role.ADMIN, "")
    except NameReserved:
        # Things of that name and no user at all: the owner of the data folder has these anyway.
        return await accounts.create_user(name, Role.ADMIN, "", restore=True)
    except AlreadyExists:
        return None


async def ensure_admin_file(
    folder: Path, accounts: Accounts, identities: Identities, name: str
) -> Path:
    """Make sure that `folder` has a valid token of an administrator; return the file.

    On a new platform this creates the administrator `name`. Later any administrator will do,
    `name` first.
    """
    await ensure_first_admin(accounts, name)
    path = folder / ADMIN_TOKEN
    who = await _holder(path, accounts, identities)
    if isinstance(who, UserCaller) and may(who, ADMINISTER, PLATFORM) is ALLOW:
        return path
    admins = [user.name for user in await accounts.list_users() if user.role is Role.ADMIN]
    chosen = name if name in admins else admins[0]
    _write(path, await accounts.create_token(chosen, _ADMIN_LIFE_S))
    _log.info("access.admin_token_written", user=chosen)
    return path


async def ensure_node_file(
    folder: Path, accounts: Accounts, identities: Identities, node: str
) -> Path:
    """Make sure that `folder` has a valid token of the local agent; return the file."""
    path = folder / NODE_TOKEN
    holder = await _holder(path, accounts, identities)
    if not isinstance(holder, NodeCaller) or holder.node != node:
        _write(path, await accounts.create_node_token(node))
        _log.info("access.node_token_written", node=node)
    return path


async def _holder(path: Path, accounts: Accounts, identities: Identities) -> Caller | None:
    """Return the owner of the file's valid token; None if it must be rewritten."""
    try:
        secret = _secret_in(read_private(path))
    except Exposed as error:
        secret = _secret_in(error.content)
        revoked = 0 if secret is None else await accounts.revoke(secret.fingerprint)
        _log.warning("access.token_file_was_readable", path=str(path), revoked=revoked)
        return None
    except PermissionError:
        return None
    return None if secret is None else await identities.of_secret(secret, thorough=True)


def _secret_in(content: bytes | None) -> Secret | None:
    return parse_secret((content or b"").decode(errors="replace").strip())


def _write(path: Path, token: IssuedToken) -> None:
    write_private(path, token.secret.text.encode() + b"\n")
