"""Tables of the documentation that are made of the code: a page says `<!-- table: NAME -->` where one belongs.

The site has them (`make docs`); `python -m docs.tables NAME` prints one.
"""

import html
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from prolepsis.control.web.foreign_fields import FOREIGN_FIELDS
from prolepsis.control.web.routes import Route
from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.core.request_figures import FIGURES
from prolepsis.core.telemetry.labels import MetricFamily
from prolepsis.engine.text.answer_formats.formats import REASONING_FORMATS
from prolepsis.engine.text.answer_formats.table import TOOL_FORMATS
from prolepsis.lab.doctor.checks import all_checks
from prolepsis.ops.monitoring.burn_rates import burn_rate_groups
from prolepsis.ops.monitoring.files import alert_groups, shipped
from prolepsis.ops.monitoring.objectives import parse_objectives
from tests.contract.surface import acts, error_codes, terms_of
from tests.core.telemetry.servers import server_with_everything
from tests.ops.monitoring.rules import all_rules

MARKER = re.compile(r"^<!-- table: (\w+)((?: [\w*]+)*) -->$", re.MULTILINE)


@cache
def everything() -> tuple[Sequence[object], Mapping[str, MetricFamily]]:
    """Return all routes and all families of series, of a server with every feature."""
    logging.getLogger("alembic").setLevel(logging.WARNING)
    with (
        redirect_stdout(StringIO()),  # its log
        TemporaryDirectory() as folder,
        server_with_everything(Path(folder)) as (application, metrics),
    ):
        return application.routes, metrics.registry.families


def _table(head: str, rows: Iterable[Iterable[str]]) -> str:
    columns = head.count("|") - 1
    return "\n".join([head, "|---" * columns + "|", *(f"| {' | '.join(cells)} |" for cells in rows)])


def series(*beginnings: str) -> str:
    """Return the families whose names begin so, behind `prolepsis_`."""
    families = everything()[1]
    chosen = sorted(name for name in families if name.removeprefix("prolepsis_").startswith(beginnings))
    rows = ((f"`{name}`", ", ".join(families[name].labels), families[name].text) for name in chosen)
    return _table("| series | labels | |", rows)


def request_figures() -> str:
    """Return the columns of a request's record, with their attributes in traces and their counters."""
    rows = (
        (
            f"`{figure.name}`",
            ("seconds, " if figure.kind.startswith("seconds") else "") + figure.text,
            f"`{figure.at[1]}`" if figure.at else "",
            ", ".join(f"`prolepsis_{name}_total`" for name in figure.counters or ()),
        )
        for figure in FIGURES
    )
    return _table("| column | | in traces | in metrics |", rows)


def settings() -> str:
    """Return each setting with its default, terms of a setting behind it."""
    return _table("| setting | default | |", _settings())


def _settings() -> Iterator[tuple[str, str, str]]:
    for name, field in sorted((EngineConfig.model_fields | ServerConfig.model_fields).items()):
        terms = terms_of(field.annotation)
        if terms is None:
            yield f"`{name}`", _default(field.get_default(call_default_factory=True)), _text(field.description)
        for term, inner in terms.model_fields.items() if terms else ():
            yield f"`{name}.{term}`", _default(inner.default), _text(inner.description)


def _default(value: object) -> str:
    match value:
        case None | () | "" | {}:
            return ""
        case tuple():
            return ", ".join(f"`{part}`" for part in value)
        case bool():
            return f"`{str(value).lower()}`"
    return f"`{value}`"


def _text(description: str | None) -> str:
    return re.sub(r"([|*<])", r"\\\1", description or "")


def reasoning_formats() -> str:
    """Return the marks between which families of models reason."""
    rows = ((f"`{one.name}`", *map(_code, (one.start, one.end))) for one in REASONING_FORMATS.values())
    return _table("| name | begins with | ends with |", rows)


def tool_calls() -> str:
    """Return the forms of tool calls, with one call each."""
    forms = TOOL_FORMATS.values()
    calls = (form.written([("f", form.arguments.write({"a": "x", "n": 2}), "id")]) for form in forms)
    several = ("several" if form.parallel else "one" for form in forms)
    names = (f"`{form.name}`" for form in forms)
    shown = (_code(call.replace("\n", "⏎")) for call in calls)
    return _table("| name | calls | one call |", zip(names, several, shown, strict=True))


def _code(text: str) -> str:
    shown = html.escape(text.strip(), quote=False).replace("|", r"\|")
    return f"<code>{shown}</code>"


def roles() -> str:
    """Return the routes that ask for a key, by the roles of which each takes any."""
    routes: dict[str, list[str]] = {}
    for route in everything()[0]:
        if isinstance(route, Route) and route.roles:
            allowed = "any role" if "admin" in route.roles and len(route.roles) > 1 else ", ".join(sorted(route.roles))
            routes.setdefault(allowed, []).append(f"`{min(route.methods or ())} {route.path}`")
    return _table("| roles | routes |", ((allowed, ", ".join(found)) for allowed, found in routes.items()))


def refused_fields() -> str:
    """Return the fields of other servers that change the answer and are not served, by what means the same."""
    fields: dict[str, list[str]] = {}
    for name, field in sorted(FOREIGN_FIELDS.items()):
        if field.changes_answer and field.read_as is None:
            use = ", ".join(f"`{other}`" for other in field.instead) or "nothing means the same"
            fields.setdefault(use, []).append(f"`{name}`")
    rows = sorted(((", ".join(names), use) for use, names in fields.items()), key=lambda row: "`" not in row[1])
    return _table("| field | use |", rows)


def doctor_checks() -> str:
    """Return the checks of the doctor; addresses of pages become links from docs/how-to."""
    rows = ((f"`{one.id}`", one.level, one.looks_at, one.what, one.why, _linked(one.fix)) for one in all_checks())
    return _table("| check | level | looks at | what | why | how to mend it |", rows)


def _linked(fix: str) -> str:
    def link(match: re.Match[str]) -> str:
        folder, page, part = match[1], match[2], match[3] or ""
        path = "" if folder == "how-to/" else f"../{folder}"
        target = part if (folder, page) == ("how-to/", "doctor") else f"{path}{page}.md{part}"
        return f"[{(part or page).strip('#').replace('-', ' ')}]({target})"

    return re.sub(r"docs/((?:[\w-]+/)*)([\w-]+)\.md(#[\w-]+)?", link, fix)


def alerts() -> str:
    """Return the alerts with their severities and runbooks, linked from docs/how-to."""
    objectives = parse_objectives(shipped("slos.yaml"), "slos.yaml")
    found: dict[str, tuple[dict[str, None], str]] = {}
    for rule in all_rules([*burn_rate_groups(objectives), *alert_groups()]):
        if isinstance(name := rule.get("alert"), str):
            labels, annotations = rule["labels"], rule["annotations"]
            assert isinstance(labels, dict)
            assert isinstance(annotations, dict)
            found.setdefault(name, ({}, annotations["runbook"]))[0][labels["severity"]] = None
    folder = "../../src/prolepsis/ops/console/runbooks"
    rows = (
        (f"`{name}`", ", ".join(severities), f"[{runbook.replace('-', ' ')}]({folder}/{runbook}.md)")
        for name, (severities, runbook) in found.items()
    )
    return _table("| alert | severity | runbook |", rows)


def audit_acts() -> str:
    """Return the names of acts of the audit log."""
    return ", ".join(f"`{act}`" for act in acts()) + "."


def codes_of_errors() -> str:
    """Return the codes of errors."""
    return ", ".join(f"`{code}`" for code in error_codes()) + "."


TABLES: Mapping[str, Callable[..., str]] = {
    made.__name__: made
    for made in (
        *(series, request_figures, settings, reasoning_formats, tool_calls, doctor_checks, alerts),
        *(roles, refused_fields, audit_acts, codes_of_errors),
    )
}


def expanded(page: str) -> str:
    """Return a page with its tables in place of their markers."""
    return MARKER.sub(lambda marker: TABLES[marker[1]](*marker[2].split()), page)


if __name__ == "__main__":
    print(TABLES[sys.argv[1]](*sys.argv[2:]))
