"""Serves the console's pages: the session of each visit, its roles, its form token, and errors that people can read."""

import secrets
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from urllib.parse import parse_qsl, quote, urlsplit

from jinja2 import Environment
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from prolepsis.control.web.caller import Caller
from prolepsis.control.web.errors import RequestRefused, describe_error
from prolepsis.control.web.intake import Intake
from prolepsis.control.web.page import GoTo, Page, PageRoute, Session, Visit
from prolepsis.control.web.refusals import wrong_role
from prolepsis.control.web.routes import PUBLIC, READERS, Route, Routes
from prolepsis.ops.console.sessions import KeyRing, Sessions

HOME, SIGN_IN = "/console", "/console/sign-in"
HEADERS = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every page: nothing is loaded from elsewhere, only our own scripts run, and no other site frames it."""


Frame = Callable[[Visit], Awaitable[Mapping[str, object]]]


class Pages:
    """Declares the pages, and answers visits to them."""

    def __init__(
        self,
        templates: Environment,
        admin: Mapping[tuple[str, str], Route],
        keys: KeyRing,
        sessions: Sessions,
        *,
        check_local: Callable[[Headers], None],
        observe: Callable[[Exception], None],
        frame: Frame,
    ) -> None:
        """`check_local` refuses visitors from elsewhere where no key is asked for, `observe` sees each refusal, and
        `frame` returns what all pages show."""
        self.routes = Routes()
        self.keys = keys
        self.sessions = sessions
        self._templates = templates
        self._admin = admin
        self._check_local = check_local
        self.observe = observe
        self._frame = frame

    def declare(self, route: PageRoute) -> None:
        """Declare a page behind sign-in, as its route is public; a form's token is checked before its handler runs."""
        declare = self.routes.get if route.method == "GET" else self.routes.post

        async def endpoint(request: Request) -> Response:
            session: Session | None = None
            opened: Response | None = None
            try:
                self.check_sender(request)
                session = self.sessions.find(request.cookies.get(_cookie_name(request)), used=not _is_update(request))
                if session is None and not self.keys.required:
                    session = self.begin(request, opened := Response(), b"")
                caller = self.keys.holder(session.signed_in) if session is not None else None
                if session is None or caller is None:
                    return _to_sign_in(request)
                if not any(caller.has(role) for role in READERS):
                    raise wrong_role(caller.roles, READERS)
                visit = await self._visit(request, caller, session)
                response = await self._shown(visit, await route.handler(visit))
            except Exception as error:  # the HTTP edge: every failure becomes one page
                response = self._failed(request, session, error)
            if opened is not None:
                response.raw_headers.extend(item for item in opened.raw_headers if item[0] == b"set-cookie")
            return response

        declare(route.path, roles=PUBLIC, summary=route.name, documented=False)(endpoint)

    def render(self, template: str, values: Mapping[str, object], status: int = 200) -> HTMLResponse:
        return HTMLResponse(self._templates.get_template(template).render(values), status, HEADERS)

    def check_sender(self, request: Request) -> None:
        """Raise `RequestRefused` (403) where another site, or without keys another machine, sends the request."""
        if not self.keys.required:
            self._check_local(request.headers)
        origin = request.headers.get("origin")
        if request.method == "POST" and origin is not None and urlsplit(origin).netloc != _host(request):
            message = f"This form comes from {origin[:128]}; allowed: pages of {_host(request)[:128]}."
            raise RequestRefused(message, code="other_origin", status=403)

    def begin(self, request: Request, response: Response, signed_in: bytes) -> Session:
        """Open a session and give its cookie to the browser."""
        cookie, session = self.sessions.open(signed_in)
        secure = request.url.scheme == "https"
        response.set_cookie(_cookie_name(request), cookie, path=HOME, httponly=True, samesite="strict", secure=secure)
        return session

    async def _visit(self, request: Request, caller: Caller, session: Session) -> Visit:
        form = await form_of(request) if request.method == "POST" else {}
        if request.method == "POST" and not secrets.compare_digest(
            form.get("csrf", "").encode(), session.csrf.encode()
        ):
            message = "This form is too old: load the page again, and nothing was changed."
            raise RequestRefused(message, code="wrong_form_token", status=403)
        return Visit(
            caller=caller,
            session=session,
            admin=self._admin,
            url=_page_of(request),
            address=str(request.base_url).rstrip("/"),
            names=request.path_params,
            query=dict(request.query_params),
            form=form,
            is_update=_is_update(request),
        )

    async def _shown(self, visit: Visit, result: Page | GoTo) -> Response:
        if isinstance(result, GoTo):
            return RedirectResponse(result.path, 303, HEADERS)
        values = {**await self._frame(visit), **result.values}
        return self.render(result.template, {**values, "title": result.title, "live": result.live, "visit": visit})

    def _failed(self, request: Request, session: Session | None, error: Exception) -> Response:
        """Return the page of an error; a session whose key is no longer valid ends."""
        self.observe(error)
        shown = describe_error(error)
        if shown.status == 401:
            if session is not None:
                self.sessions.close(session)
            return _to_sign_in(request, "&ended=1")
        back = local_page(urlsplit(request.headers.get("referer", "")).path)
        values = {"title": "Not possible", "status": shown.status, "message": str(shown), "back": back}
        response = self.render("error.html", values, shown.status)
        response.headers.update(shown.headers)
        return response


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form; of equal names the last one counts. Raises `RequestRefused`."""
    intake: Intake = request.app.state.intake
    async with intake.uploads.read(request, tenant="") as raw:
        fields = partial(parse_qsl, keep_blank_values=True, errors="strict", max_num_fields=64)
        try:
            return dict(await intake.large_work.run("", len(raw), lambda: fields(raw.decode()), gives_way=False))
        except ValueError:
            raise RequestRefused("The form is not URL-encoded UTF-8.", code="invalid_form") from None


def local_page(path: str | None) -> str:
    """Return a page of the console that a form or an address names, the overview for anything else."""
    parts = urlsplit(path or "")
    is_ours = not parts.scheme and not parts.netloc and (parts.path == HOME or parts.path.startswith(f"{HOME}/"))
    return str(path) if is_ours and "\\" not in str(path) else HOME


def _is_update(request: Request) -> bool:
    return request.method == "GET" and "hx-request" in request.headers


def _to_sign_in(request: Request, why: str = "") -> Response:
    """Send the browser to the form; an update of a page that is open replaces all of it."""
    path = f"{SIGN_IN}?next={quote(_page_of(request))}{why}"
    if _is_update(request):
        return Response(headers={**HEADERS, "hx-redirect": path})
    return RedirectResponse(path, 303, HEADERS)


def _page_of(request: Request) -> str:
    """Return the page to come back to: an act has none of its own."""
    if request.method != "GET":
        return HOME
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


def _host(request: Request) -> str:
    return request.headers.get("host", "")


def _cookie_name(request: Request) -> str:
    """Return a name with the port: browsers share cookies between the servers of one machine."""
    return f"prolepsis_console_{request.url.port or request.url.scheme}"
