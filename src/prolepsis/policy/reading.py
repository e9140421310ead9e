"""From a file to a policy, or another shape: every problem at once, each with line, what was given and is allowed."""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, RootModel, ValidationError
from pydantic_core import ErrorDetails

from prolepsis.core.errors import ConfigError
from prolepsis.core.validation import Document, Finding, read_yaml
from prolepsis.policy.model import Policy

Keys = tuple[int | str, ...]
Shape = TypeVar("Shape", bound=BaseModel)
_TYPES = {
    "tuple_type": "a list",
    "model_type": "a mapping",
    "dict_type": "a mapping",
    "bool_type": "true, false",
    "string_type": "a text; numbers need quotes",
    "int_type": "a whole number",
    "float_type": "a number",
    "too_short": "one or more",
    "invalid_key": "keys that are texts",
}


class Malformed(ValueError):
    """A text that does not have the shape that was asked for."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("; ".join(one.message for one in findings))
        self.findings = tuple(findings)


class InvalidPolicy(ConfigError):
    """A file that is no usable policy."""

    def __init__(self, name: str, findings: Sequence[Finding]) -> None:
        first, *others = findings
        more = f" (and {len(others)} more: `prolepsis plan check` shows all)" if others else ""
        super().__init__(f"policy {first.in_file(name)}{more}", param="policy")
        self.name = name
        self.findings = tuple(findings)


def read_policy(file: Path) -> tuple[Policy, Document]:
    """Return the policy of a file and where its parts stand.

    Raises `InvalidPolicy` with all that is wrong with its shape, and `ConfigError` where there is nothing to read.
    """
    return parse_policy(read_text(file), str(file))


def read_text(file: Path, what: str = "policy") -> str:
    """Return what the file holds; raises `ConfigError`, which calls it `what`."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{what} {file} cannot be read: {error.strerror}", param=what) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what} {file} is not UTF-8: {error.reason}", param=what) from None


def parse_policy(text: str, name: str) -> tuple[Policy, Document]:
    """Return the policy that `text` holds; `name` is what errors call it. Raises `InvalidPolicy`."""
    try:
        return read_shape(text, Policy)
    except Malformed as error:
        raise InvalidPolicy(name, error.findings) from None


def read_shape(text: str, shape: type[Shape]) -> tuple[Shape, Document]:
    """Return what the YAML in `text` holds, and where its parts stand; raises `Malformed`."""
    try:
        document = read_yaml(text)
    except ValueError as error:
        raise Malformed([Finding("error", (), f"is not YAML: {error}")]) from None
    try:
        if document.value is None:
            raise Malformed([Finding("error", (), f"is empty; allowed: {', '.join(shape.model_fields)}")])
        return shape.model_validate(document.value), document
    except ValidationError as error:
        raise Malformed(_findings(error.errors(), document, shape)) from None


def located(findings: Sequence[Finding], document: Document) -> list[Finding]:
    """Return the findings with the lines they are about."""
    return [Finding(one.severity, one.path, one.message, document.line(one.path)) for one in findings]


def _findings(errors: Sequence[ErrorDetails], document: Document, shape: type[BaseModel]) -> list[Finding]:
    """Leave out what only follows from an error further inside."""
    inner = [error for error in errors if not _follows(error, errors)]
    findings = []
    for error in inner:
        path = _as_written(error["loc"], document.value)
        findings.append(Finding("error", path, _message(error, shape), document.line(path)))
    return sorted(findings, key=lambda one: one.line or 0)


def _follows(error: ErrorDetails, errors: Sequence[ErrorDetails]) -> bool:
    loc = error["loc"]
    return error["type"] == "too_short" and any(
        len(other["loc"]) > len(loc) and other["loc"][: len(loc)] == loc for other in errors
    )


def _as_written(loc: Keys, value: object) -> Keys:
    """Return `loc` as the file spells it: a single value has no position, header names have their own case."""
    path: list[int | str] = []
    for part in loc:
        if isinstance(value, Mapping):
            if isinstance(part, int):
                continue
            written = next((key for key in value if str(key).lower() == part.lower()), part)
            path.append(str(written))
            value = value.get(written)
        elif isinstance(value, list):
            path.append(part)
            value = value[part] if isinstance(part, int) and part < len(value) else None
        elif isinstance(part, str):
            path.append(part)
    return tuple(path)


def _message(error: ErrorDetails, shape: type[BaseModel]) -> str:
    kind, loc = error["type"], error["loc"]
    if kind == "extra_forbidden":
        names = _names_at(loc[:-1], shape)
        near = difflib.get_close_matches(str(loc[-1]), names, n=1, cutoff=0.0)[0]
        return f"is unknown; did you mean {near!r}?"
    if kind == "missing":
        return "is missing"
    return f"is {_shown(error['input'])}; {_allowed(error)}"


def _allowed(error: ErrorDetails) -> str:
    if error["type"] == "value_error":
        return error["msg"].removeprefix("Value error, ")
    if error["type"] == "literal_error":
        return f"allowed: {error['ctx']['expected']}".replace(" or ", ", ").replace("'", "")
    return f"allowed: {_TYPES.get(error['type']) or error['msg'].removeprefix('Input should be ')}"


def _names_at(loc: Keys, shape: type[BaseModel]) -> list[str]:
    """Return the keys that the mapping at `loc` may have."""
    kind: Any = shape
    for part in loc:
        kind = _bare(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            kind = kind.model_fields[str(part)].annotation
        else:
            kind = get_args(kind)[1 if get_origin(kind) is dict else 0]
    return list(_bare(kind).model_fields)


def _bare(kind: Any) -> Any:
    """Return an annotation without what surrounds the type that has the keys."""
    while True:
        origin = get_origin(kind)
        if origin is Annotated:
            kind = get_args(kind)[0]
        elif origin in (Union, UnionType):
            kind = next(part for part in get_args(kind) if part is not type(None))
        elif isinstance(kind, type) and issubclass(kind, RootModel):
            kind = kind.model_fields["root"].annotation
        else:
            return kind


def _shown(value: object) -> str:
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 64 else f"{text[:61]}..."
