"""The interface between the console and the pages of features: a page and its visit."""

import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from prolepsis.control.web.admin_routes import Section, allows, as_json, call, typed
from prolepsis.control.web.caller import Caller
from prolepsis.control.web.errors import describe_error
from prolepsis.control.web.routes import Route
from prolepsis.core.terminal.resource import Act, Resource

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Notice:
    """Message about an action for the next page."""

    kind: Literal["done", "failed"]
    text: str


@dataclass(slots=True)
class Session:
    """One browser that is signed in. Times are of a monotonic clock."""

    signed_in: bytes  # value that `KeyRing.sign_in` returned; empty for the developer
    opened_at: float
    used_at: float
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    """Every form that changes something carries it."""
    notices: list[Notice] = field(default_factory=list)
    draft: str | None = None  # a policy that was edited and not applied

    def notify(self, kind: Literal["done", "failed"], text: str) -> None:
        self.notices = [*self.notices[-3:], Notice(kind, text)]

    def take_notices(self) -> list[Notice]:
        """Return the notices, and forget them."""
        notices, self.notices = self.notices, []
        return notices


@dataclass(frozen=True, slots=True)
class Page:
    """A page for a visit."""

    template: str
    title: str
    values: Mapping[str, object] = field(default_factory=dict)
    live: bool = True  # the browser fetches it again every few seconds; not where people write longer texts


@dataclass(frozen=True, slots=True)
class GoTo:
    """The page to load after an act."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One request for a page, by a caller who is signed in."""

    caller: Caller
    session: Session
    admin: Mapping[tuple[str, str], Route]  # the routes of the features, by method and path pattern
    url: str
    address: str  # of the server, as the browser names it: http://localhost:8000
    names: Mapping[str, str]  # parts of the path, by name
    query: Mapping[str, str]
    form: Mapping[str, str]
    is_update: bool  # the browser itself fetches the page again: a person may not have seen what it showed

    async def read(self, kind: type[T], path: str, query: Mapping[str, object] | None = None, **names: str) -> T:
        """Return what an admin route replies; raises as that does."""
        return await call(self.caller, kind, self.admin["GET", path], names, query or {})

    async def section(
        self, kind: type[T], path: str, query: Mapping[str, object] | None = None, **names: str
    ) -> Section[T]:
        """Return the same as a part of the page, so that a part without its data leaves the others in place."""
        if not self.may("GET", path):
            return Section(None, hidden=True)
        try:
            return Section(await self.read(kind, path, query, **names))
        except Exception as error:  # contained: the part says what is wrong; what is unexpected is logged
            return Section(None, problem=str(describe_error(error)))

    async def document(self, resource: Resource) -> Section[Any]:
        section: Section[Any] = await self.section(object, resource.path)
        if section.value is None:
            return section
        return Section(resource.show(as_json(self.admin["GET", resource.path], section.value)))

    async def ask(self, kind: type[T], path: str, body: Mapping[str, object]) -> T:
        """Return what an admin route replies to a body; for routes that answer and change nothing."""
        return await call(self.caller, kind, self.admin["POST", path], {}, body)

    async def act(self, act: Act) -> object:
        """Call a route that changes something with the fields of the form, read as the route declares them."""
        route = self.admin[act.method, act.path]
        names = {name: self.form.get(name, "") for name in re.findall(r"{(\w+)}", act.path)}
        return await call(self.caller, object, route, names, typed(self.form, route.taken[0]) if route.taken else {})

    def may(self, method: str, path: str) -> bool:
        """Return whether the caller's roles include an admin route."""
        return allows(self.caller, self.admin[method, path])


Handler = Callable[[Visit], Awaitable[Page | GoTo]]
Values = Callable[[Visit], Awaitable[tuple[str, Mapping[str, object]]]]
"""Returns a template that shows `sections` among others, and the values that it needs besides."""


@dataclass(frozen=True, slots=True)
class PageRoute:
    """A page by its address, for every role that reads."""

    path: str
    name: str
    handler: Handler
    in_navigation: bool = False
    method: Literal["GET", "POST"] = "GET"
    """POST: a form that changes nothing; what changes something is an act."""


@dataclass(frozen=True, slots=True)
class FeaturePages:
    """What a feature adds to the console; its templates are in its own folder."""

    routes: Sequence[PageRoute]
    acts: Mapping[str, Act] = field(default_factory=dict)  # by the last part of the form's address


def listed(path: str, title: str, *resources: Resource, values: Values | None = None) -> FeaturePages:
    """Return the page of resources: facts, tables and forms of each. `values`: those of its own template."""

    async def shown(visit: Visit) -> Page:
        sections = [(resource, await visit.document(resource)) for resource in resources]
        template, own = await values(visit) if values else ("resources.html", {})
        return Page(template, title, {"sections": sections, **own})

    acts = {name: act for resource in resources for name, act in resource.acts.items()}
    return FeaturePages((PageRoute(path, title, shown, in_navigation=True),), acts)


def fixed(path: str, title: str, template: str, values: Callable[[], Mapping[str, object]]) -> FeaturePages:
    """Return a page that shows the same to all, and is loaded once."""

    async def shown(_: Visit) -> Page:
        return Page(template, title, values(), live=False)

    return FeaturePages((PageRoute(path, title, shown, in_navigation=True),))
