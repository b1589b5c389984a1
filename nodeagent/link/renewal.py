"""The certificate by which a joined node is known, renewed before it ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NoReturn

import structlog

from nodeagent.link.channels import Link
from nsml.client.errors import ClientError, Unavailable
from nsml.common.clock import Clock

Renew = Callable[[str], Awaitable[bool]]
"""Renews the certificate at this address if that is due; whether there is a new one. Raises ClientError or
OSError when it could not, ValueError when the one that is there cannot be read."""

DAY_S = 86_400.0
RETRY_S = 600.0

log = structlog.get_logger()


async def keep_renewed(renew: Renew, link: Link, clock: Clock) -> NoReturn:
    """Renew when it is due, asked at the start and daily; connections are then made with the new one.

    A failure is no reason to stop: the old certificate is good for weeks, and what runs here runs on
    even without one.
    """
    while True:
        pause_s = DAY_S
        try:
            if await _renewed(renew, link):
                link.refresh()
                log.info("certificate.renewed")
        except ClientError as error:
            log.warning(
                "certificate.not_renewed", error=error.message, why=error.why, advice=error.advice
            )
            pause_s = RETRY_S
        except (OSError, ValueError) as error:
            log.warning("certificate.not_renewed", error=str(error))
            pause_s = RETRY_S
        await clock.sleep(pause_s)


async def _renewed(renew: Renew, link: Link) -> bool:
    """Any control plane renews; the first that is there is asked."""
    *others, last = link.ways.round()
    for address in others:
        with suppress(Unavailable):
            return await renew(address)
    return await renew(last)
