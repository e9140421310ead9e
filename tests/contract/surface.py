"""What users see of the product, as lines of text: each list is made by one function.

`python -m tests.contract.surface` writes them to `golden/`. A golden file changes only with the product: a changed file
needs a line in CHANGELOG.md, and a name in it is never the path of a package.
"""

import ast
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

from fastapi import FastAPI
from typer.core import TyperGroup
from typer.main import get_command

from prolepsis.control.store import tables
from prolepsis.control.web.routes import Route
from prolepsis.core.config import EngineConfig, ServerConfig, SettingTerms
from prolepsis.core.stages import STAGES
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.core.terminal import output
from prolepsis.core.terminal.config import environment_name, field_names, is_terms
from prolepsis.ops.tracing.spans import SpanName
from prolepsis.server.cli.main import COMMANDS, app, load_command
from tests.contract.acts import ACTS
from tests.core.telemetry.servers import server_with_everything
from tests.paths import ROOT
from tests.server.application import build
from tests.server.fakes import ByteTokenizer, FakeEngine

GOLDEN = Path(__file__).with_name("golden")
SOURCE = ROOT / "src" / "prolepsis"
PROGRAM = "prolepsis"
_WORDS = ("description", "title", "summary", "example", "examples", "operationId", "tags")
"""Keys of the OpenAPI document that say nothing about what is taken and given."""


@cache
def application() -> FastAPI:
    return build(ServerConfig(allow_drills=True), FakeEngine(), ByteTokenizer(), Metrics())


def _shape(value: object) -> object:
    """Return a part of the OpenAPI document without its prose."""
    if isinstance(value, dict):
        return {
            name: _shape(part) for name, part in value.items() if name not in _WORDS or not isinstance(part, str | list)
        }
    return [_shape(part) for part in value] if isinstance(value, list) else value


def _compact(value: object) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return text.replace("#/components/schemas/", "")


def openapi() -> Iterator[str]:
    """Yield a line for each parameter, body and reply of a route, and for each property of a schema."""
    document: Any = _shape(application().openapi())
    for path, methods in sorted(document["paths"].items()):
        for method, operation in sorted(methods.items()):
            route = f"{method.upper()} {path}"
            for parameter in operation.get("parameters", []):
                yield f"{route} takes {parameter['in']} {parameter['name']}: {_compact(parameter['schema'])}"
            if "requestBody" in operation:
                yield f"{route} takes {_compact(operation['requestBody'])}"
            for status, reply in sorted(operation["responses"].items()):
                yield f"{route} gives {status}: {_compact(reply.get('content', {}))}"
    for name, schema in sorted(document["components"]["schemas"].items()):
        properties = schema.pop("properties", {})
        yield f"{name}: {_compact(schema)}"
        for key, value in sorted(properties.items()):
            yield f"{name}.{key}: {_compact(value)}"


def _commands(name: str, command: Any) -> Iterator[str]:
    yield name
    for parameter in sorted(command.params, key=lambda each: each.name or ""):
        words = "|".join([*parameter.opts, *parameter.secondary_opts])
        kind = _plain_type(parameter.type_descriptor.annotation)
        default = "" if callable(parameter.default) else f" = {parameter.default!r}"
        yield f"{name} {words}: {kind}{default}{' required' if parameter.required else ''}"
    if isinstance(command, TyperGroup):
        for child, found in sorted((COMMANDS if name == PROGRAM else command.commands).items()):
            yield from _commands(f"{name} {child}", load_command(child) if name == PROGRAM else found)


def commands() -> Iterator[str]:
    """Yield each command with its options."""
    yield from _commands(PROGRAM, get_command(app))


def settings() -> Iterator[str]:
    """Yield each setting with its type and default."""
    for name, field in sorted((EngineConfig.model_fields | ServerConfig.model_fields).items()):
        default = field.get_default(call_default_factory=True)
        terms = terms_of(field.annotation)
        yield f"{name}: {_plain_type(field.annotation)} = {'...' if terms and default else repr(default)}"
        for term, inner in terms.model_fields.items() if terms else ():
            yield f"  {name}.{term}: {_plain_type(inner.annotation)} = {inner.default!r}"


def terms_of(annotation: object) -> type[SettingTerms] | None:
    """Return the terms that a setting consists of, if any."""
    kinds = (annotation, *get_args(annotation))
    return next((kind for kind in kinds if is_terms(kind)), None)


def _plain_type(annotation: object) -> str:
    """Return a type without the modules of its parts."""
    named = re.sub(r"<(?:class|function) '?([\w.]+)'?[^>]*>", r"\1", str(annotation))
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", named)


def metrics() -> Iterator[str]:
    """Yield each family of series with its kind and labels."""
    with TemporaryDirectory() as folder, server_with_everything(Path(folder)) as (_, registered):
        for name, family in sorted(registered.registry.families.items()):
            yield f"{name}{{{','.join(family.labels)}}}: {family.kind}"


def traces() -> Iterator[str]:
    """Yield the names of spans and of their attributes, and those of the audit log's export."""
    export = (SOURCE / "control" / "audit" / "delivery.py").read_text()
    audit = set(re.findall(r"\"(prolepsis\.[a-z_.]+)", export))
    yield from sorted({*get_args(SpanName), *attributes(), *audit})


def attributes() -> set[str]:
    """Return the names of attributes of spans."""
    name = re.compile(r"\"((?:prolepsis|gen_ai|http|error)\.[a-z_.0-9]+)\"")
    files = (SOURCE / "core" / "request_figures.py", *(SOURCE / "ops" / "tracing").glob("*.py"))
    return {f"prolepsis.stage.{stage}" for stage in STAGES} | {
        found for file in files for found in name.findall(file.read_text())
    }


def acts() -> Iterator[str]:
    """Yield the acts of the audit log."""
    yield from sorted(ACTS)


def trees(words: str) -> Iterator[ast.Module]:
    """Yield the source files with some words, parsed: all of them would take seconds."""
    texts = (file.read_text() for file in SOURCE.rglob("*.py"))
    return (ast.parse(text) for text in texts if re.search(words, text))


def error_codes() -> Iterator[str]:
    """Yield the codes of errors: of their classes, and those that are given to one."""
    found = set()
    for tree in trees(r"\bcode ?="):
        for node in ast.walk(tree):
            values = [word.value for word in node.keywords if word.arg == "code"] if isinstance(node, ast.Call) else []
            if isinstance(node, ast.ClassDef):
                values = [
                    part.value
                    for part in node.body
                    if isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == "code"
                ]
            found |= {
                part.value
                for value in values
                for part in ast.walk(value)
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
            }
    yield from sorted(code for code in found if re.fullmatch("[a-z_]+", code))


def store() -> Iterator[str]:
    """Yield each column of the store's tables with its type."""
    for name, table in sorted(tables.metadata.tables.items()):
        for column in table.columns:
            marks = (" key" if column.primary_key else "") + (" null" if column.nullable else "")
            yield f"{name}.{column.name}: {column.type}{marks}"


def pages() -> Iterator[str]:
    """Yield the addresses of the console."""
    for route in application().routes:
        if isinstance(route, Route) and route.path.startswith("/console"):
            for method in sorted(route.methods or ()):
                yield f"{method} {route.path_format}"


def environment() -> Iterator[str]:
    """Yield the environment variables that the package reads: of each setting, and others."""
    others = set()
    for file in SOURCE.rglob("*.py"):
        others |= set(re.findall(r"\"(PROLEPSIS_[A-Z_]*[A-Z])\"", file.read_text()))
    yield from sorted(others | {environment_name(name) for name in field_names()})


def exit_statuses() -> Iterator[str]:
    """Yield the statuses with which commands end."""
    statuses: Mapping[str, int] = {
        name: value for name, value in vars(output).items() if name.isupper() and type(value) is int and name[0] != "_"
    }
    yield from (f"{value} {name}" for name, value in sorted(statuses.items(), key=lambda each: each[1]))


LISTS: Mapping[str, Callable[[], Iterator[str]]] = {
    made.__name__: made
    for made in (
        *(openapi, commands, settings, metrics, traces, acts, error_codes, store, pages, environment, exit_statuses),
    )
}


def lines(name: str) -> str:
    """Return the text of a golden file as the product is now."""
    return "".join(f"{line}\n" for line in LISTS[name]())


if __name__ == "__main__":
    for name in sys.argv[1:] or LISTS:
        (GOLDEN / f"{name}.txt").write_text(lines(name))
