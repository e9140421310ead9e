"""Checks whether an answer that has to be whole is so as its client reads it: its tool calls, and the form asked for.

A stop string, a stop token or an output policy may cut an answer where its grammar could not end.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace

from prolepsis.core.errors import AnswerBroken
from prolepsis.core.requests import GrammarSpec
from prolepsis.engine.text.answer_formats.call_reader import is_json_object
from prolepsis.engine.text.grammar.validation import broken
from prolepsis.server.answering.chat_reader import ChatReader
from prolepsis.server.preparing.prepared import PreparedRequest
from prolepsis.server.text.deltas import Delta


class AnswerCheck:
    """One sample's calls and form, from the deltas that go to the client. Guardrails use what it finds of calls."""

    def __init__(self, prepared: PreparedRequest) -> None:
        self._reader = ChatReader(prepared)
        self._tools = prepared.tools
        self._call_form = prepared.formats.tools if prepared.tools.callable else None
        self._form = _form_of(prepared)
        self._schema = prepared.asked.form.checked
        self._checks_calls = prepared.fits is not None
        self._names: dict[int, str] = {}
        self._arguments: dict[int, str] = {}
        self._content: list[str] = []
        self._has_content = False
        self._is_broken = False

    @staticmethod
    def of(prepared: PreparedRequest) -> "AnswerCheck | None":
        """Return the check of a sample that has to be whole; None where any text will do."""
        return AnswerCheck(prepared) if prepared.tools.callable or _form_of(prepared) else None

    def take(self, delta: Delta) -> Delta:
        """Return what the client gets: an answer that was cut where it is not whole has the finish reason `length`."""
        for piece in self._reader.take(delta):
            if piece.kind in ("call", "arguments"):
                self._names.setdefault(piece.call, piece.text)
                text = piece.text if piece.kind == "arguments" else ""
                self._arguments[piece.call] = self._arguments.get(piece.call, "") + text
            elif piece.kind == "content":
                if self._form is not None:
                    self._content.append(piece.text)
                if self._opens_call(piece.text) and (self._tools.parallel or not self._arguments):
                    self._is_broken = True  # a call that could not be read is given back as content
                self._has_content = self._has_content or bool(piece.text.strip())
        if delta.finish_reason == "stop" and not self._may_end(delta):
            return replace(delta, finish_reason="length")
        return delta

    async def taken(self, delta: Delta) -> Delta:
        """Do the same, in a thread where arguments of fenced calls may have to be checked."""
        if self._checks_calls and delta.finish_reason is not None:
            return await asyncio.to_thread(self.take, delta)
        return self.take(delta)

    async def whole(self, delta: Delta) -> None:
        """Raise `AnswerBroken` if the answer that ends with `delta` breaks what its grammar does not hold."""
        if delta.finish_reason != "stop":
            return
        for schema, text in self._to_check():
            fault = await asyncio.to_thread(broken, schema, text)
            if fault is not None:
                raise AnswerBroken.of(fault)

    def _to_check(self) -> list[tuple[Mapping[str, object], str]]:
        if self._arguments or self._schema is None:
            schemas = [self._tools.checked.get(self._names.get(call, "")) for call in self._arguments]
            return [(one, text) for one, text in zip(schemas, self._arguments.values(), strict=True) if one is not None]
        text = "".join(self._content).lstrip()
        _, end = json.JSONDecoder().raw_decode(text)  # behind the form control tokens may be shown
        return [(self._schema, text[:end])]

    @property
    def whole_calls(self) -> bool | None:
        """Whether every call that the sample began is an object of JSON with a name; None: it began none."""
        if not self._arguments and not self._is_broken:
            return None
        return not self._is_broken and all(map(is_json_object, self._arguments.values()))

    def _may_end(self, delta: Delta) -> bool:
        was_cut = delta.stop_reason is not None
        if self._arguments:
            return all(map(is_json_object, self._arguments.values())) and not (was_cut and self._is_broken)
        if not was_cut:  # its grammar was complete; behind the form control tokens may be shown
            return True
        return not self._is_broken and not self._tools.required and _holds(self._form, "".join(self._content))

    def _opens_call(self, text: str) -> bool:
        """Say whether the mark of calls stands in a part of the content where it opens one."""
        form = self._call_form
        if form is None:
            return False
        mark = form.mark.strip()
        return not self._has_content and text.lstrip().startswith(mark) if form.at_start else mark in text


def _form_of(prepared: PreparedRequest) -> GrammarSpec | None:
    """Return the form that is asked for, where a text shows whether it is whole: JSON, or one of some choices."""
    form = prepared.asked.form.grammar
    return form if form is not None and form.kind in ("json_schema", "choice") else None


def _holds(form: GrammarSpec | None, text: str) -> bool:
    if form is None:
        return True
    if form.kind == "choice":
        return text in json.loads(form.source)
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
