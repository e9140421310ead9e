"""The buttons of the console: each calls an admin route with the fields of its form, for the caller of the session."""

from collections import defaultdict
from collections.abc import Mapping

from prolepsis.control.web.errors import RequestRefused, describe_error
from prolepsis.control.web.page import GoTo, PageRoute, Visit
from prolepsis.core.terminal.resource import Act
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
            taken = visit.admin[act.method, act.path].taken
            # wherever the route records a reason: over HTTP it may be empty, here a person can type it
            if any("reason" in kind.model_fields for kind in taken) and not form.get("reason", "").strip():
                message = "Type a reason: it is recorded in the audit log."
                raise RequestRefused(message, code="missing_reason", param="reason")
            reply = await visit.act(act)
        except Exception as error:  # contained: the page that the form is on says what is wrong
            pages.observe(error)
            visit.session.notify("failed", f"Nothing was changed. {describe_error(error)}")
            if "text" in form:
                visit.session.draft = form["text"]
        else:
            on_words = "speculation is stopped" if form.get("on") == "true" else "released"
            words = defaultdict(str, {**form, "reply": reply, "on_words": on_words})
            visit.session.notify("done", act.done.format_map(words))
            if "text" in form:
                visit.session.draft = None
            return GoTo(act.then or local_page(form.get("next")))
        return GoTo(local_page(form.get("next")))

    pages.declare(PageRoute("/console/act/{act}", "Call an admin route", perform, method="POST"))
