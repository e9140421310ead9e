"""The buttons of the console: each calls an admin route with the fields of its form, for the caller of the session."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from prolepsis.console.pages import GoTo, Pages, Visit, local_page
from prolepsis.web.errors import RequestRefused, describe_error
from prolepsis.web.routes import READERS


@dataclass(frozen=True, slots=True)
class Act:
    """One route that a form may call; parts of its path are fields of the form."""

    method: str
    path: str
    done: str
    """Message for the next page; fields of the form, and the `reply`, are in braces."""
    names: tuple[str, ...] = ()
    """Fields that are parts of the path."""
    then: str = ""
    """The page to go to once it is done; empty: the one that the form names."""


ROLLOUT, REPLAY = "/admin/rollouts/{rollout_id}/{command}", "/admin/audit/{entry}/replay"
ACTS = {
    "kill": Act("PUT", "/admin/kill", "Kill switch for {scope}: {on_words}."),
    "flag": Act("PUT", "/admin/flags", "Flag {flag} is set."),
    "flag-remove": Act("POST", "/admin/flags/remove", "Flag {flag} is no longer set here."),
    "rollout": Act("POST", ROLLOUT, "{command}: done.", ("rollout_id", "command")),
    "policy": Act("PUT", "/admin/policy", "Version {reply.version} of the policy is in use.", then="/console/policy"),
    "policy-rollback": Act("POST", "/admin/policy/rollback", "The text of version {to} is in use again."),
    "head": Act("POST", "/admin/heads/swap", "{proposer} drafts with {head} now."),
    "breaker": Act("PUT", "/admin/breakers", "Breaker of {proposer} in {traffic_class}: {state}."),
    "drift": Act("POST", "/admin/drift/reset", "The stream of {proposer} in {traffic_class} starts again."),
    "replay": Act("POST", REPLAY, "Entry {entry} was decoded again: {reply.outcome}.", ("entry",)),
}
"""By the last part of the form's address."""


def declare_acts(pages: Pages) -> None:
    """Declare the one address of all forms; the admin route decides about roles, values and conflicts."""

    async def perform(visit: Visit) -> GoTo:
        act = ACTS.get(visit.names["act"])
        if act is None:
            message = f"There is no act {visit.names['act'][:64]!r}; allowed: {', '.join(ACTS)}."
            raise RequestRefused(message, code="unknown_act", status=404)
        form = dict(visit.form)
        try:
            _check_reason(visit, act, form)
            names = {name: form.pop(name, "") for name in act.names}
            reply = await visit.admin.act(visit.caller, act.method, act.path, form, **names)
        except Exception as error:  # contained: the page that the form is on says what is wrong
            pages.observe(error)
            visit.session.tell("failed", f"Nothing was changed. {describe_error(error)}")
            if "text" in form:
                visit.session.draft = form["text"]
        else:
            visit.session.tell("done", _told(act, visit.form, reply))
            if "text" in form:
                visit.session.draft = None
            return GoTo(act.then or local_page(form.get("next")))
        return GoTo(local_page(form.get("next")))

    pages.post("/console/act/{act}", "Call an admin route", perform, READERS)


def _check_reason(visit: Visit, act: Act, form: dict[str, str]) -> None:
    """Ask for a reason wherever the route records one: over HTTP it may be empty, here a person can type it."""
    bodies = visit.admin.route(act.method, act.path).bodies
    if any("reason" in body.model_fields for body in bodies) and not form.get("reason", "").strip():
        raise RequestRefused("Type a reason: it is recorded in the audit log.", code="missing_reason", param="reason")


def _told(act: Act, form: Mapping[str, str], reply: object) -> str:
    on_words = "speculation is stopped" if form.get("on") == "true" else "released"
    return act.done.format_map(defaultdict(str, {**form, "reply": reply, "on_words": on_words}))
