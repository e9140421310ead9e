"""The buttons of the console: each calls an admin route with the fields of its form, for the caller of the session."""

from collections import defaultdict
from collections.abc import Mapping

from prolepsis.control.web.errors import RequestRefused, describe_error
from prolepsis.control.web.page import Act, GoTo, PageRoute, Visit
from prolepsis.ops.console.pages import Pages, local_page


def declare_acts(pages: Pages, acts: Mapping[str, Act]) -> None:
    """Declare the one address of all forms, whose last part names an act.

    The admin route decides about roles, values and conflicts.
    """

    async def perform(visit: Visit) -> GoTo:
        act = acts.get(visit.names["act"])
        if act is None:
            message = f"There is no act {visit.names['act'][:64]!r}; allowed: {', '.join(acts)}."
            raise RequestRefused(message, code="unknown_act", status=404)
        form = dict(visit.form)
        try:
            _check_reason(visit, act, form)
            names = {name: form.pop(name, "") for name in act.names}
            reply = await visit.admin.act(visit.caller, act.method, act.path, form, **names)
        except Exception as error:  # contained: the page that the form is on says what is wrong
            pages.observe(error)
            visit.session.notify("failed", f"Nothing was changed. {describe_error(error)}")
            if "text" in form:
                visit.session.draft = form["text"]
        else:
            visit.session.notify("done", _outcome(act, visit.form, reply))
            if "text" in form:
                visit.session.draft = None
            return GoTo(act.then or local_page(form.get("next")))
        return GoTo(local_page(form.get("next")))

    pages.declare(PageRoute("/console/act/{act}", "Call an admin route", perform, method="POST"))


def _check_reason(visit: Visit, act: Act, form: dict[str, str]) -> None:
    """Ask for a reason wherever the route records one: over HTTP it may be empty, here a person can type it."""
    bodies = visit.admin.route(act.method, act.path).bodies
    if any("reason" in body.model_fields for body in bodies) and not form.get("reason", "").strip():
        raise RequestRefused("Type a reason: it is recorded in the audit log.", code="missing_reason", param="reason")


def _outcome(act: Act, form: Mapping[str, str], reply: object) -> str:
    on_words = "speculation is stopped" if form.get("on") == "true" else "released"
    return act.done.format_map(defaultdict(str, {**form, "reply": reply, "on_words": on_words}))
