"""One thing that is wrong with a policy, or odd about it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A policy with an error is not taken; a warning is for whoever wrote it."""

    severity: Severity
    path: tuple[int | str, ...]
    """Keys and list positions from the top of the file."""
    message: str
    line: int | None = None
    """Of the file, from 1."""

    @property
    def where(self) -> str:
        """The path as people write it, such as rules[2].match.prompt_tokens."""
        return shown_path(self.path)

    def plain(self) -> dict[str, object]:
        """Return it for programs."""
        return {"severity": self.severity, "path": self.where, "line": self.line, "message": self.message}

    def in_file(self, name: str) -> str:
        """Return it as one line that names file and line."""
        place = name if self.line is None else f"{name}:{self.line}"
        return f"{place}: {f'{self.where} ' if self.path else ''}{self.message}"


def shown_path(path: Sequence[int | str]) -> str:
    """Return keys joined by dots, with positions in brackets."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f"{'.' if text else ''}{part[:64]}"
    return text


STRICT = ConfigDict(strict=True, frozen=True)


class Part(BaseModel):
    """A mapping of the file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())


def spelt(pattern: str, allowed: str) -> AfterValidator:
    """Refuse texts other than `pattern`, saying in words what is allowed."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"allowed: {allowed}")
        return text

    return AfterValidator(check)


Name: TypeAlias = Annotated[str, spelt(r"[A-Za-z0-9._-]{1,64}", "1 to 64 letters, digits, dots, dashes or underscores")]
Number: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]


def one_or_more(value: object) -> object:
    """Read a single value as a list of one, and lists as the tuples they become."""
    if isinstance(value, list):
        return tuple(value)
    return value if isinstance(value, tuple | dict) else (value,)


Path = Sequence[int | str]


class _Loader(yaml.SafeLoader):
    """YAML 1.2's scalars: `off`, `no` and `12:30` are texts, as people mean them."""

    yaml_implicit_resolvers = {}  # noqa: RUF012  # PyYAML's own way to declare them

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

    def line(self, path: Path) -> int | None:
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


def read_yaml(text: str) -> Document:
    """Return the document of `text`; raises `ValueError` that says line and reason."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        return Document(None if node is None else loader.construct_document(node), node)
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ValueError(f"{where}{error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from None


def _inner(node: yaml.Node, part: int | str, line: int) -> tuple[yaml.Node | None, int]:
    """Return the node at `part`, None where it is not there, and the line of its key, or `line`."""
    if isinstance(node, yaml.MappingNode):
        for key, value in reversed(node.value):  # what `<<` brought in stands first
            if isinstance(key, yaml.ScalarNode) and key.value == str(part):
                return value, key.start_mark.line
    elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part].start_mark.line
    return None, line
