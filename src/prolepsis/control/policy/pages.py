"""The policy: rules in use, versions and their differences, a request explained, an edit checked and applied."""

import difflib
import json
from collections.abc import Iterator, Mapping

from prolepsis.control.policy.commands import VERSIONS
from prolepsis.control.policy.explain import ExplainedRequest
from prolepsis.control.policy.routes import PolicyCheckReply, PolicyReply
from prolepsis.control.policy.versions import PolicyText
from prolepsis.control.web.errors import RequestRefused, describe_error
from prolepsis.control.web.page import FeaturePages, Page, PageRoute, Visit

VERSION = "/admin/policy/versions/{version}"
SAMPLE = json.dumps({"model": "", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 64}, indent=2)
FIRST = """version: 1
default: {mode: off}
rules:
  - name: chat
    match: {route: /v1/chat/completions}
    use: chat
"""
"""Where there is no text to begin with."""


async def _policy(visit: Visit) -> Page:
    reply = await visit.read(PolicyReply, "/admin/policy")
    values = {
        "policy": reply,
        "rules": rules(reply),
        "versions": VERSIONS,
        "found": await visit.document(VERSIONS) if reply.source == "store" else None,
        "may_apply": may_apply(visit),
    }
    return Page("control/policy/templates/policy.html", "Policy", values)


async def _version(visit: Visit) -> Page:
    """Show a version's text, and how it differs from the one before."""
    version = await visit.read(PolicyText, VERSION, version=visit.names["version"])
    in_use = await visit.read(PolicyReply, "/admin/policy")
    before = await visit.section(PolicyText, VERSION, version=str(version.version - 1)) if version.version > 1 else None
    used = await visit.section(PolicyText, VERSION, version=str(in_use.version))
    old = before.value.text if before and before.value else ""
    body = {"text": version.text, **({"against": version.version - 1} if old else {})}
    values = {
        "one": version,
        "in_use": in_use.version,
        "is_used": used.value is not None and used.value.text == version.text,
        "lines": list(text_diff(old, version.text)),
        "check": await visit.ask(PolicyCheckReply, "/admin/policy/check", body) if old else None,
        "may_apply": may_apply(visit),
    }
    return Page("control/policy/templates/version.html", f"Policy version {version.version}", values, live=False)


async def _edit(visit: Visit) -> Page:
    """Show the text to edit; once it was sent, what is wrong with it and what it would change."""
    reply = await visit.read(PolicyReply, "/admin/policy")
    text, check = visit.form.get("text"), None
    if text is not None:
        visit.session.draft = text
        check = await visit.ask(PolicyCheckReply, "/admin/policy/check", {"text": text})
    values = {
        "policy": reply,
        "text": text or visit.session.draft or await _text_in_use(visit, reply),
        "check": check,
        "may_apply": may_apply(visit),
    }
    return Page("control/policy/templates/edit.html", "Edit the policy", values, live=False)


async def _text_in_use(visit: Visit, reply: PolicyReply) -> str:
    if reply.source != "store" or not reply.version:
        return FIRST
    return (await visit.read(PolicyText, VERSION, version=str(reply.version))).text


async def _explain(visit: Visit) -> Page:
    """Show a form for a request; once it was sent, which rule it meets and why."""
    form, answer, problem = visit.form, None, ""
    if form:
        try:
            answer = await visit.ask(ExplainedRequest, "/admin/policy/explain", explain_body(form))
        except Exception as error:  # contained: the form says what is wrong with the request
            problem = str(describe_error(error))
    values = {"form": form, "sample": SAMPLE, "answer": answer, "problem": problem}
    return Page("control/policy/templates/explain.html", "Explain a request", values, live=False)


def explain_body(form: Mapping[str, str]) -> dict[str, object]:
    """Return the body of /admin/policy/explain; raises `RequestRefused` for a request that is not a JSON object."""
    try:
        request = json.loads(form.get("request", ""))
    except ValueError as error:
        raise RequestRefused(f"The request is not valid JSON: {error}.", code="invalid_json", param="request") from None
    body: dict[str, object] = {"request": request}
    for name in ("tenant", "tier", "route"):
        if form.get(name):
            body[name] = form[name]
    for name in ("roles", "flags"):
        if form.get(name):
            body[name] = [part.strip() for part in form[name].split(",")]
    lines = [line.partition(":") for line in form.get("headers", "").splitlines() if line.strip()]
    body["headers"] = {name.strip(): value.strip() for name, _, value in lines}
    if form.get("prompt_tokens"):
        body["prompt_tokens"] = int(form["prompt_tokens"]) if form["prompt_tokens"].isdecimal() else 0
    return body


def rules(reply: PolicyReply) -> list[Mapping[str, object]]:
    """Return the rules and the default in the order in which they are tried, each with match and terms."""
    content = reply.content or {}
    listed, default = content.get("rules", []), content.get("default", {})
    assert isinstance(listed, list), "a policy's content lists its rules"
    assert isinstance(default, dict), "a policy's content holds the default terms"
    return [*listed, {"name": "default", "match": {}, **default}] if content else []


def text_diff(old: str, new: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of a unified difference with their kinds: ins, del, or neither."""
    for line in difflib.unified_diff(old.splitlines(), new.splitlines(), n=3, lineterm=""):
        if not line.startswith(("---", "+++")):
            yield {"+": "ins", "-": "del"}.get(line[0], ""), line


def may_apply(visit: Visit) -> bool:
    return visit.may("PUT", "/admin/policy")


PAGES = FeaturePages(
    routes=(
        PageRoute("/console/policy", "Policy", _policy, in_navigation=True),
        PageRoute("/console/policy/versions/{version}", "A version", _version),
        PageRoute("/console/policy/edit", "Edit the policy", _edit),
        PageRoute("/console/policy/edit", "Check an edit", _edit, method="POST"),
        PageRoute("/console/policy/explain", "Explain a request", _explain),
        PageRoute("/console/policy/explain", "Explain a request", _explain, method="POST"),
    ),
    acts=VERSIONS.acts,
)
