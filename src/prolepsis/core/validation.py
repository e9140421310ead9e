"""Findings about documents that users wrote; pydantic errors are rendered in one way for all of them.

Also the base of the models that such documents are read as.
"""

import difflib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from itertools import islice
from types import UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, RootModel, ValidationError

Kind = Literal["unknown", "missing", "type", "value"]
Path = tuple[int | str, ...]
_Details = Mapping[str, Any]
"""An item of pydantic's `ValidationError.errors`."""

_TIME = "a date and time with its zone, such as 2026-11-24T10:00:00Z"
_ALLOWED = {
    "bool_type": "true, false",
    "bool_parsing": "true, false",
    "datetime_from_date_parsing": _TIME,
    "dict_type": "a mapping",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "invalid_key": "keys that are text",
    "list_type": "a list",
    "model_attributes_type": "a mapping",
    "model_type": "a mapping",
    "path_type": "a path",
    "string_pattern_mismatch": "text that matches {pattern}",
    "string_too_long": "at most {max_length} characters",
    "string_too_short": "at least {min_length} characters",
    "string_type": "text, in quotes",
    "timezone_aware": _TIME,
    "too_long": "at most {max_length} items",
    "too_short": "at least {min_length} items",
    "tuple_type": "a list",
}
_TYPE_ERROR = re.compile(r".*(_type|_parsing|_unicode|_from_float)")
_PYDANTIC_NAME = re.compile(r".*[\[(].*|str|int|float|bool|dict|list|tuple|none|[A-Z]\w*")
"""Names that pydantic puts into a location: members of unions, validators and keys."""
_MOST_NAMES = 12
"""A longer list of names is not shown."""
_MOST_CHARACTERS = 64
_MOST_ERRORS = 100
"""Errors that are looked at in a document of which one problem is reported."""
MOST_PROBLEMS = 200
"""Errors of a document that `problems` looks at: each takes time, and no reader wants more."""


Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a document, or odd about it: errors make it unusable, warnings do not."""

    severity: Severity
    path: Path  # keys and list positions from the top of the file
    message: str
    line: int | None = None  # line of the file, from 1

    @property
    def where(self) -> str:
        """The path as people write it, such as rules[2].match.prompt_tokens."""
        return shown_path(self.path)

    def plain(self) -> dict[str, object]:
        return {"severity": self.severity, "path": self.where, "line": self.line, "message": self.message}

    def in_file(self, name: str) -> str:
        """Return it as one line that names file and line."""
        place = name if self.line is None else f"{name}:{self.line}"
        return f"{place}: {f'{self.where} ' if self.path else ''}{self.message}"


@dataclass(frozen=True, slots=True)
class Problem:
    path: Path  # keys and list positions from the top, spelt as in the document
    kind: Kind
    given: object = None
    reason: str = ""
    """What is allowed, as 'allowed: ...' or in a validator's own words; empty for an unknown or a missing key."""
    names: tuple[str, ...] = ()  # for an unknown key: the keys that are known at its place

    @property
    def where(self) -> str:
        """The path as people write it, such as rules[2].match.prompt_tokens."""
        return shown_path(self.path)

    @property
    def message(self) -> str:
        """Everything but the path: a predicate that follows it in a sentence."""
        if self.kind == "unknown":
            return f"is unknown; {suggestion(str(self.path[-1]), self.names)}"
        return "is missing" if self.kind == "missing" else f"is {shown_value(self.given)}; {self.reason}"

    def __str__(self) -> str:
        return f"{self.where} {self.message}".strip()


def problems(error: ValidationError, model: type[BaseModel], document: object) -> list[Problem]:
    """Return the problems that `error`, raised for `document` by `model`, is about, in the order of the model's fields.

    Errors that only follow from an error further inside are left out, and those of several members of a union at one
    place are one problem.
    """
    return _problems(error.errors(include_url=False)[:MOST_PROBLEMS], model, document)


def _problems(errors: Sequence[_Details], model: type[BaseModel], document: object) -> list[Problem]:
    merged: dict[tuple[Path, Kind], Problem] = {}
    for error in errors:
        loc, inner = error["loc"], [longer["loc"] for longer in errors if len(longer["loc"]) > len(error["loc"])]
        if error["type"] == "too_short" and any(place[: len(loc)] == loc for place in inner):
            continue
        problem = _problem(error, model, document)
        before = merged.setdefault((problem.path, problem.kind), problem)
        if before.reason != problem.reason and all(each.reason.startswith("allowed: ") for each in (before, problem)):
            reason = f"{before.reason}, {problem.reason.removeprefix('allowed: ')}"
            merged[problem.path, problem.kind] = replace(before, reason=reason)
    return list(merged.values())


def first_problem(error: ValidationError, model: type[BaseModel], document: object) -> Problem:
    """Return the one problem to report: an unknown key first, as it may also show as a missing one."""
    errors = error.errors(include_url=False)
    unknown = [each for each in errors if each["type"] == "extra_forbidden"]
    return _problems(unknown[:1] or errors[:_MOST_ERRORS], model, document)[0]


def one_value(error: ValidationError) -> str:
    """Return what `error`, raised for a single value, is about: the value, and what is allowed."""
    first = error.errors(include_url=False)[0]
    reason = _reason(first)
    return reason if first["type"] == "value_error" else f"{shown_value(first['input'])}; {reason}"


def suggestion(name: str, names: Iterable[str], most_names: int = _MOST_NAMES) -> str:
    """Return 'did you mean ...?' with the nearest known name, and the known names where it is far and they are few."""
    known = sorted(names)
    if not known:
        return "allowed: none"
    name = name[:_MOST_CHARACTERS]
    [near] = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    far = not difflib.get_close_matches(name, [near], cutoff=0.6)
    return f"did you mean {near!r}?" + (f" allowed: {', '.join(known)}" if far and len(known) <= most_names else "")


def shown_path(path: Sequence[int | str]) -> str:
    """Return keys joined by dots, with positions in brackets."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f"{'.' if text else ''}{part[:_MOST_CHARACTERS]}"
    return text


def shown_value(value: object) -> str:
    """Return a short text for a value given, as JSON and YAML spell the plain ones."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = repr(_beginning(value, _MOST_CHARACTERS))
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."


def _beginning(value: object, most: int) -> object:
    inner = max(1, most // 4)
    if isinstance(value, str):
        value = re.sub(r"://.*@", "://***@", value)  # a URL may have a password
    if isinstance(value, str | bytes):
        return value[:_MOST_CHARACTERS]
    if isinstance(value, list | tuple):
        return [_beginning(part, inner) for part in value[:most]]
    if isinstance(value, dict):
        return {key: _beginning(part, inner) for key, part in islice(value.items(), most)}
    return value


def _problem(error: _Details, model: type[BaseModel], document: object) -> Problem:
    kind, loc = error["type"], error["loc"]
    path = _as_written(loc, document, last_is_key=kind in ("extra_forbidden", "missing"))
    if kind == "extra_forbidden":
        return Problem(path, "unknown", error["input"], names=tuple(_names_at(loc[:-1], model)))
    if kind == "missing":
        return Problem(path, "missing")
    return Problem(path, "type" if _TYPE_ERROR.fullmatch(kind) else "value", error["input"], _reason(error))


def _reason(error: _Details) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind in ("value_error", "assertion_error"):
        return str(error["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if kind in ("literal_error", "enum"):
        expected = {"True": "true", "False": "false"}.get(context["expected"], context["expected"])
        return f"allowed: {expected}".replace(" or ", ", ").replace("'", "")
    if kind == "union_tag_invalid":
        return f"allowed: {context['expected_tags']}".replace("'", "")
    known = _ALLOWED.get(kind)
    allowed = known.format(**context) if known else error["msg"].removeprefix("Input should be ")
    return f"allowed: {allowed.replace('at least 1 items', 'one or more').replace(' 1 characters', ' 1 character')}"


def _as_written(loc: Path, value: object, *, last_is_key: bool) -> Path:
    """Return `loc` as the document spells it, without positions in a single value and without pydantic's names."""
    path: list[int | str] = []
    for i, part in enumerate(loc):
        inside: object = None
        if isinstance(part, int) and isinstance(value, Mapping) and str(part) in value:
            part = str(part)  # noqa: PLW2901  # a key that was read as a number
        if isinstance(part, int):
            if not isinstance(value, list | tuple):
                continue
            inside = value[part] if part < len(value) else None
            path.append(part)
        else:
            keys = value if isinstance(value, Mapping) else {}
            key = part if part in keys else next((key for key in keys if str(key).lower() == part.lower()), None)
            if key is None and _PYDANTIC_NAME.fullmatch(part) and not (last_is_key and i == len(loc) - 1):
                continue
            inside = None if key is None else keys[key]
            path.append(part if key is None else str(key))
        value = inside
    return tuple(path)


def _names_at(loc: Path, model: type[BaseModel]) -> list[str]:
    """Return the keys that the mapping at `loc` may have."""
    kinds = list(_members(model))
    for part in loc:
        inside = [member for kind in kinds for field in _inside(kind, part) for member in _members(field)]
        kinds = inside or [kind for kind in kinds if getattr(kind, "__name__", "") == part] or kinds
    return [
        field.alias or name
        for kind in kinds
        if isinstance(kind, type) and issubclass(kind, BaseModel)
        for name, field in kind.model_fields.items()
    ]


def _inside(kind: Any, part: int | str) -> Iterator[Any]:
    """Yield the annotations of what a value of the type `kind` holds at a key or position."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield from (f.annotation for name, f in kind.model_fields.items() if part in (name, f.alias))
    elif get_origin(kind) is dict or get_origin(kind) is Mapping:
        yield get_args(kind)[1]
    elif get_origin(kind) in (list, tuple, Sequence) and isinstance(part, int):
        yield get_args(kind)[0]


def _members(kind: Any) -> Iterator[Any]:
    """Yield the types that an annotation stands for, without what surrounds them."""
    origin = get_origin(kind)
    if origin is Annotated:
        yield from _members(get_args(kind)[0])
    elif origin in (Union, UnionType):
        for part in get_args(kind):
            yield from _members(part)
    elif isinstance(kind, type) and issubclass(kind, RootModel):
        yield from _members(kind.model_fields["root"].annotation)
    else:
        yield kind


STRICT = ConfigDict(strict=True, frozen=True)


class Part(BaseModel):
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


_DIGEST_LENGTH = 12


def _label_text(value: object) -> object:
    """Read a whole number as the text it is; 1.10 would become 1.1, so such versions need quotes."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class VersionedPart(Part, ABC):
    """A whole file, known by a version of its content."""

    version: Annotated[
        str,
        spelt(r"[A-Za-z0-9._+-]{0,64}", "a text of at most 64 letters, digits, dots, dashes, underscores or +"),
        BeforeValidator(_label_text),
    ] = ""
    """A label for this state of the file; nothing depends on it."""

    @abstractmethod
    def content(self) -> Mapping[str, object]:
        """Return all that takes effect, as plain values."""

    @cached_property
    def digest(self) -> str:
        """The version of the content: twelve hexadecimal digits of SHA-256."""
        text = json.dumps(self.content(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]

    @property
    def full_version(self) -> str:
        """`version@digest`, or the digest alone if the file has no `version`."""
        return f"{self.version}@{self.digest}" if self.version else self.digest
