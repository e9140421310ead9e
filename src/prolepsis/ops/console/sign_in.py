"""Signs in with an API key, and out."""

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from prolepsis.control.web.errors import RequestRefused, describe_error
from prolepsis.control.web.page import GoTo, PageRoute, Visit
from prolepsis.control.web.refusals import wrong_role
from prolepsis.control.web.routes import PUBLIC, READERS
from prolepsis.core.audit_event import AuditEvent, Emit
from prolepsis.ops.console.pages import HEADERS, HOME, SIGN_IN, Pages, form_of, local_page


def declare_sign_in(pages: Pages, emit: Emit) -> None:
    """Declare the page that asks for a key; who signs in and out is recorded."""

    @pages.routes.get(SIGN_IN, roles=PUBLIC, summary="Sign in to the console", documented=False)
    async def ask(request: Request) -> Response:
        if not pages.keys.required:
            return RedirectResponse(HOME, 303, HEADERS)
        ended = "The session is over; sign in again." if request.query_params.get("ended") else ""
        return _form(pages, local_page(request.query_params.get("next")), ended)

    @pages.routes.post(SIGN_IN, roles=PUBLIC, summary="Open a session", documented=False)
    async def open_session(request: Request) -> Response:
        form: dict[str, str] = {}
        try:
            pages.check_sender(request)
            form = await form_of(request)
            signed_in = pages.keys.sign_in(form.get("key", "").strip())
            caller = pages.keys.holder(signed_in)
            if not any(caller.has(role) for role in READERS):
                raise wrong_role(caller.roles, READERS)
            response = RedirectResponse(local_page(form.get("next")), 303, HEADERS)
            pages.begin(request, response, signed_in)
            emit(AuditEvent(actor=caller.actor, action="console.signed_in"))
            return response
        except Exception as error:  # the HTTP edge: every failure is shown on the form
            pages.observe(error)
            refused = describe_error(error)
            return _form(pages, local_page(form.get("next")), str(refused), refused)

    async def sign_out(visit: Visit) -> GoTo:
        pages.sessions.close(visit.session)
        emit(AuditEvent(actor=visit.caller.actor, action="console.signed_out"))
        return GoTo(SIGN_IN)

    pages.declare(PageRoute("/console/sign-out", "Close the session", sign_out, method="POST"))


def _form(pages: Pages, following: str, message: str, refused: RequestRefused | None = None) -> Response:
    values = {"title": "Sign in", "next": following, "message": message}
    response = pages.render("sign_in.html", values, refused.status if refused else 200)
    response.headers.update(refused.headers if refused else {})
    return response
