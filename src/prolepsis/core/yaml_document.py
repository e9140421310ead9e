"""YAML documents: their values, the lines where their parts stand, and the model they are read as."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from prolepsis.core.errors import ConfigError
from prolepsis.core.validation import MOST_PROBLEMS, Finding, problems

Shape = TypeVar("Shape", bound=BaseModel)


class InvalidFile(ConfigError):
    """A text that cannot be used as the file that it is meant to be."""

    what: ClassVar[str]  # the content of the file, and the setting that names it
    command: ClassVar[str] = ""
    """The command that shows all findings; empty: there is none, and the error shows them all."""

    def __init__(self, name: str, findings: Sequence[Finding]) -> None:
        shown = findings[:1] if self.command else findings
        left = len(findings) - len(shown)
        more = f" (and {left} more: `prolepsis {self.command}` shows all)" if left else ""
        super().__init__(f"{self.what} {'; '.join(finding.in_file(name) for finding in shown)}{more}", param=self.what)
        self.name = name
        self.findings = tuple(findings)


MOST_DEPTH = 100


class _Loader(yaml.SafeLoader):
    """YAML 1.2's scalars: `off`, `no` and `12:30` are texts, as people mean them. Values nest `MOST_DEPTH` deep."""

    depth = 0

    yaml_implicit_resolvers = {}  # noqa: RUF012  # PyYAML's own way to declare them

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MOST_DEPTH:
            problem = f"values are nested more than {MOST_DEPTH} deep; allowed: fewer"
            raise yaml.composer.ComposerError(None, None, problem, parent.start_mark if parent else None)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    problem = f"key {key.value[:64]!r} is given twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?(0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), list(_first))


@dataclass(frozen=True, slots=True)
class Document:
    """A document's value, and where its parts stand."""

    value: object
    root: yaml.Node | None

    def line(self, path: Sequence[int | str]) -> int | None:
        """Return the line (from 1) of the value at `path`, or of the innermost part of it that is there."""
        node, line = self.root, None
        for part in path:
            if node is None:
                break
            line = node.start_mark.line
            node, line = _inner(node, part, line)
        if node is not None and line is None:
            line = node.start_mark.line
        return None if line is None else line + 1


MOST_VALUES = 30_000
"""Most values of a document with its aliases expanded."""
_MARKS = re.compile(r"[\[\]{},:\n]|[-?] ")
_MARKS_A_VALUE = 3
"""Characters that may begin or end a value, more than any document has that people write. The parser takes time for
each, and all of it before it is known how many values there are."""


def read_yaml(text: str, *, most: int = MOST_VALUES) -> Document:
    """Return the document of `text`, which may have this many values; raises `ValueError` that says line and reason."""
    if sum(1 for _ in _MARKS.finditer(text)) > _MARKS_A_VALUE * most:
        raise ValueError(f"it has more brackets, commas, colons and lines than {most} values have; allowed: fewer")
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        written: dict[int, int] = {}
        if node is not None and _size(node, written, most) > most:
            fault = f"it has {len(written)} values" if len(written) > most else "its aliases stand for too much"
            raise ValueError(f"{fault}; allowed: {most} values in all")
        return Document(None if node is None else loader.construct_document(node), node)
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ValueError(f"{where}{error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from None


def _size(node: yaml.Node, known: dict[int, int], most: int) -> int:
    """Return how many values a node holds with its aliases written out; one that holds itself holds too many."""
    if id(node) not in known:
        known[id(node)] = most
        parts = node.value if isinstance(node, yaml.CollectionNode) else ()
        inner = (part for item in parts for part in (item if isinstance(item, tuple) else (item,)))
        known[id(node)] = 1 + sum(_size(part, known, most) for part in inner)
    return known[id(node)]


def read_shape(
    text: str, shape: type[Shape], invalid: type[InvalidFile], name: str, *, most: int = MOST_VALUES
) -> tuple[Shape, Document]:
    """Return what the YAML in `text` holds, and where its parts stand; `name` is what errors call it.

    Raises `invalid` with everything that is wrong with the shape.
    """
    try:
        document = read_yaml(text, most=most)
    except ValueError as error:
        raise invalid(name, [Finding("error", (), f"is not YAML: {error}")]) from None
    if document.value is None:
        raise invalid(name, [Finding("error", (), f"is empty; allowed: {', '.join(shape.model_fields)}")])
    try:
        return shape.model_validate(document.value), document
    except ValidationError as error:
        bare = [Finding("error", problem.path, problem.message) for problem in problems(error, shape, document.value)]
        findings = sorted(located(bare, document), key=lambda finding: finding.line or 0)
        if (left := error.error_count() - MOST_PROBLEMS) > 0:
            findings.append(Finding("error", (), f"has {left} more errors"))
        raise invalid(name, findings) from None


def located(findings: Sequence[Finding], document: Document) -> list[Finding]:
    return [Finding(entry.severity, entry.path, entry.message, document.line(entry.path)) for entry in findings]


def _inner(node: yaml.Node, part: int | str, line: int) -> tuple[yaml.Node | None, int]:
    """Return the node at `part`, None where it is not there, and the line of its key, or `line`."""
    if isinstance(node, yaml.MappingNode):
        for key, value in reversed(node.value):  # what `<<` brought in stands first
            if isinstance(key, yaml.ScalarNode) and key.value == str(part):
                return value, key.start_mark.line
    elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part].start_mark.line
    return None, line
