"""Renews the certificate of a joined node before it expires."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NoReturn

import structlog

from nodeagent.link.channels import Link
from nsml.client.errors import ClientError, Unavailable
from nsml.common.clock import Clock

Renew = Callable[[str], Awaitable[bool]]
"""Renews the certificate at this address if due; returns whether there is a new one. Raises ClientError or
OSError on failure, ValueError if the present one cannot be read."""

DAY_S = 86_400.0
RETRY_S = 600.0

log = structlog.get_logger()


async def keep_renewed(renew: Renew, link: Link, clock: Clock) -> NoReturn:
    """Renew when due, checked at the start and daily; later connections use the new certificate.

    A failure does not stop the agent: the old certificate is valid for weeks, and programs continue
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
    """Renew at the first reachable control plane: any can."""
    *others, last = link.ways.round()
    for address in others:
        with suppress(Unavailable):
            return await renew(address)
    return await renew(last)
