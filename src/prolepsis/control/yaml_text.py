"""YAML as policies are written in it: only true and false are booleans, no key counts twice, every value has a line."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

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
