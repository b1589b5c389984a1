"""/dashboard: users without a command line sign in with a token, and are redirected to their own dashboard."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from controlplane.domain.errors import Denied, NotSignedIn, NsmlError
from controlplane.domain.identity import UserCaller
from controlplane.gateway.addresses import address_of
from controlplane.views.proxy import LOGIN
from controlplane.views.views import Kind
from nsml.common.hosts import is_same_place

if TYPE_CHECKING:
    from starlette.requests import Request

    from controlplane.gateway.callers import Callers
    from controlplane.views.views import Views

MOST_BODY: Final = 4 << 10
HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>nsml</title>
<style>
body {{ background: #121212; color: #e0e0e0; font: 14px monospace; display: grid; place-content: center; height: 90vh; }}
form {{ display: grid; gap: 1em; width: min(30em, 90vw); }}
input, button {{ font: inherit; padding: 0.6em; }}
.wrong {{ color: #ff8a80; white-space: pre-line; }}
</style>
</head>
<body>
<form method="post" action="{path}">
<strong>nsml</strong>
<label for="token">Your token: the one that nsml login asks for</label>
<input id="token" name="token" type="password" autocomplete="off" autofocus required>
<button>Show the dashboard</button>
<small>With nsml at hand no token is needed: the command nsml dashboard prints an address that signs you in.</small>
<div class="wrong" role="alert">{wrong}</div>
</form>
</body>
</html>
"""


def login_routes(callers: Callers, views: Views) -> list[Route]:
    """Return the routes of /dashboard, and of / for users who open the address printed by `nsml up`."""

    async def home(_: Request) -> Response:
        return RedirectResponse(LOGIN, status_code=303, headers=HEADERS)

    async def login(request: Request) -> Response:
        if request.method != "POST":
            return _page("")
        try:
            return await _led_on(request, callers, views)
        except NsmlError as error:
            status = {NotSignedIn: 401, Denied: 403}.get(type(error), 503)
            return _page("\n".join(filter(None, (error.message, error.why, error.attempt))), status)

    return [Route("/", home), Route(LOGIN, login, methods=["GET", "POST"])]


async def _led_on(request: Request, callers: Callers, views: Views) -> Response:
    origin, host = (request.headers.get(name, "") for name in ("origin", "host"))
    # Another site's page could sign its visitors in as another user.
    if not is_same_place(origin, host):
        raise Denied("this was not sent by the page itself")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BODY:
            raise NotSignedIn("that is no token")
    (token,) = parse_qs(body.decode("latin-1")).get("token", [""])[:1]
    who = await callers.of_token(token.strip(), address_of(request))
    if not isinstance(who, UserCaller):
        raise Denied("a dashboard is for users")
    _, url = await views.open(who, token.strip(), (), Kind.DASHBOARD)
    place = urlsplit(url)
    # A relative address, since the browser may use another name of this host.
    return RedirectResponse(f"{place.path}?{place.query}", status_code=303, headers=HEADERS)


def _page(wrong: str, status: int = 200) -> Response:
    text = _PAGE.format(path=LOGIN, wrong=html.escape(wrong))
    return HTMLResponse(text, status_code=status, headers=HEADERS)
