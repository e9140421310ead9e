"""Answers that are calls as a whole and written as JSON, fenced or bare, though the template has another form of calls.

Nothing of such an answer may go out before it ends: text behind the last call would make all of it a text.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import regex
from jiter import from_json

from prolepsis.engine.text.answer_formats.call_reader import JsonCall, json_call
from prolepsis.engine.text.answer_formats.schemas import Function, named_properties

Fits = Callable[[JsonCall], bool]  # says whether a call's arguments keep to its function's schema
_OBJECT = "{}"
_FRAME = regex.compile(r"\s*(?:(?:```(?:json)?\s*(?:\{\}\s*)+```|\{\}|\{\{\}\})\s*)+")
"""An answer with each of its objects as `{}`; models whose template shows a call in doubled braces write them too."""
_KEYS = ({"name", "arguments"}, {"name", "parameters"})
_NO_COMMA, _OPEN_NUMBERS = "Expecting ',' delimiter", ("", ".", "e", "E", "e-", "E-", "e+", "E+")
_GROWTH = 16
"""A text is looked at again when it has grown by such a part, so that the work grows as its length does."""


class FencedCalls:
    """Reads one answer's text, always from its start on."""

    def __init__(self, names: Iterable[str], fits: Fits, *, parallel: bool) -> None:
        self._names = list(names)
        self._fits = fits
        self._parallel = parallel
        self._next_look = 0

    def read(self, text: str, *, ended: bool) -> Sequence[JsonCall] | None:
        """Return the calls that an answer is, none while that is open; None: it is something else, for certain."""
        if not ended and len(text) < self._next_look:
            return ()
        self._next_look = len(text) + len(text) // _GROWTH
        frame, objects, rest = _split(text)
        values = [_value(item) for item in objects]
        are_calls = (self._parallel or len(values) <= 1) and all(
            value is not None and value.keys() in _KEYS and value["name"] in self._names for value in values
        )
        if _FRAME.fullmatch(frame + _OBJECT * bool(rest), partial=not ended) is None or not are_calls:
            return None
        if rest:
            return None if ended or not self._may_be_call(rest) else ()
        calls = [call for item in objects if ended and (call := json_call(item)) is not None and self._fits(call)]
        return calls if not ended or len(calls) == len(objects) else None

    def _may_be_call(self, text: str) -> bool:
        """Say whether an object may go on as a call; `text` is its beginning."""
        value = _value(text)
        if value is None or not any(value.keys() <= keys for keys in _KEYS):
            return False
        name = value.get("name", "")
        if isinstance(name, str) and list(value)[-1:] in ([], ["name"]):  # it may go on
            return any(known.startswith(name) for known in self._names)
        return "name" not in value or name in self._names


def _value(text: str) -> dict[str, object] | None:
    """Return what an object holds so far; None: readers of JSON would not take it."""
    with suppress(ValueError):
        value: dict[str, object] = from_json(text.encode(), allow_inf_nan=False, partial_mode="trailing-strings")
        return value
    return None


def skeletons(functions: Iterable[Function]) -> str:
    """Return calls without their values: what an answer that calls has, too, and drafts are made from."""
    calls = [
        {"name": func.name, "arguments": dict.fromkeys(named_properties(func.parameters or {}, "", None)[0], "")}
        for func in functions
    ]
    return "\n".join(f"```json\n{json.dumps(call, ensure_ascii=False, indent=2)}\n```" for call in calls)


def _split(text: str) -> tuple[str, Sequence[str], str]:
    """Return a text with `{}` for each whole object in it, those objects, and what of another one is there."""
    frame, objects, at, decoder = "", list[str](), 0, json.JSONDecoder()
    while (start := text.find("{", at)) >= 0:
        frame, at = frame + text[at:start], start
        if text.startswith("{{", at):
            frame, at = frame + "{", at + 1
            continue
        try:
            _, end = decoder.raw_decode(text, at)
        except RecursionError:
            break
        except json.JSONDecodeError as error:
            if error.msg.startswith(_NO_COMMA) and text[error.pos :].strip() not in _OPEN_NUMBERS:
                break  # what reads partial objects would let this pass
            return frame, objects, text[at:]
        objects.append(text[at:end])
        frame, at = frame + _OBJECT, end
    return frame + text[at:], objects, ""
