"""Reads the lines of a batch's file: where each stands and what it asks for, or why the file is refused."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Annotated, Literal

from pydantic import Field

from prolepsis.control.store.batches import BatchLine
from prolepsis.control.web.body_reader import parse_body
from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.fields import Body, JsonObject
from prolepsis.control.web.intake import Uploads

MOST_LINES = 50_000
"""That ask for something; as many others may be empty."""
MOST_BYTES = 200 * 2**20
_FRAME_BYTES, _FRAME_MEMBERS = 2**13, 8
"""What a line may have around its body, which has the bounds of a request's."""
_MOST_FAULTS = 100
_PROMPT = ("tools", "instructions", "messages", "prompt", "input")
"""Fields of a body in the order in which a prompt has them."""
_FIRST_PIECE = 64  # characters; each next piece is twice as long


class LineBody(Body):
    """One line of a batch's file."""

    custom_id: Annotated[str, Field(min_length=1, max_length=512)]
    method: Literal["POST"]
    url: str
    body: JsonObject


@dataclass(frozen=True, slots=True)
class LineFault:
    """OpenAI's error of a line."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class LineReader:
    """Takes a file piece by piece; its lines may then run unless there are `faults`."""

    def __init__(self, batch_id: str, endpoints: Sequence[str], uploads: Uploads | None = None) -> None:
        """`uploads` has the bounds of a request's body, which are those of a line's; None: those of a whole file."""
        self.faults: list[LineFault] = []
        self.model = ""
        """That of all lines."""
        self.num_lines = 0
        """Lines that ask for something."""
        self._batch_id = batch_id
        self._endpoints = endpoints
        self._custom_ids = set[str]()
        self._number = 0
        self._start = 0
        self._rest = b""
        self._uploads = uploads or Uploads(MOST_BYTES)
        self._is_refused = False

    @property
    def is_over(self) -> bool:
        """Whether what follows need not be read: the file is refused already."""
        return self._is_refused or len(self.faults) >= _MOST_FAULTS

    def take(self, piece: bytes) -> list[BatchLine]:
        """Return the lines that end in a piece of the file; an empty piece is its end."""
        if self._number + piece.count(b"\n") > 2 * MOST_LINES:  # counted before a million empty lines are made
            message = f"The file has more than {2 * MOST_LINES} lines with empty ones; allowed: {MOST_LINES} of each."
            self.faults.append(LineFault("too_many_lines", message))
            self._is_refused = True
            return []
        *lines, self._rest = (self._rest + piece).split(b"\n") if piece else (self._rest, b"")
        parsed = [line for raw in lines for line in self._read(raw)]
        if len(self._rest) > self._uploads.most_bytes + _FRAME_BYTES:
            self._number += 1
            self._parsed(self._rest)  # refused, although its end is not there yet
            self._is_refused = True
        if not piece and not self.num_lines and not self.faults:
            self.faults.append(LineFault("empty_file", "The file has no lines; allowed: 1 to 50000."))
        return parsed

    def _read(self, raw: bytes) -> Iterator[BatchLine]:
        start = self._start
        self._number += 1
        self._start += len(raw) + 1
        if not raw.strip() or self.is_over:
            return
        self.num_lines += 1
        if line := self._parsed(raw):
            yield BatchLine(
                batch_id=self._batch_id,
                number=self._number,
                custom_id=line.custom_id,
                prefix=prefix_of(line.body),
                start=start,
                length=len(raw),
            )

    def _parsed(self, raw: bytes) -> LineBody | None:
        try:
            line = parse_line(raw, self._uploads)
            self._check(line)
        except RequestRefused as error:
            self.faults.append(LineFault(error.code, str(error), self._number, error.param))
            return None
        return line

    def _check(self, line: LineBody) -> None:
        """Raise `RequestRefused` for what no line may be, alone or after those before it."""
        if self.num_lines > MOST_LINES:
            self._is_refused = True
            raise _refused("too_many_lines", f"The file has more than {MOST_LINES} lines; allowed: {MOST_LINES}.")
        if line.url not in self._endpoints:
            message = f"url is {line.url[:128]!r}; allowed: {', '.join(self._endpoints)}"
            raise _refused("invalid_url", message, "url")
        if line.custom_id in self._custom_ids:
            message = f"custom_id {line.custom_id[:64]!r} stands in an earlier line; allowed: each once"
            raise _refused("duplicate_custom_id", message, "custom_id")
        self._custom_ids.add(line.custom_id)
        model = line.body.get("model")
        if not isinstance(model, str) or not model:
            raise _refused("missing_required_parameter", "body.model is missing; allowed: a model's name", "body.model")
        self.model = self.model or model
        if model != self.model:
            message = f"body.model is {model[:128]!r}; allowed: {self.model[:128]!r}, the model of the lines before"
            raise _refused("mismatched_model", message, "body.model")
        for name in ("stream", "background"):
            if line.body.get(name):
                raise _refused("invalid_value", f"body.{name} is true; allowed in batches: false", f"body.{name}")


def parse_line(raw: bytes, uploads: Uploads) -> LineBody:
    """Parse one line, whose body has the bounds of a request's; raises `RequestRefused`."""
    if len(raw) > (most := uploads.most_bytes + _FRAME_BYTES):
        raise _refused("line_too_large", f"The line has more than {most} bytes; allowed: fewer.")
    most_members = uploads.most_members + _FRAME_MEMBERS
    try:
        return parse_body(raw.removeprefix(b"\xef\xbb\xbf"), LineBody, most_members=most_members)
    except RequestRefused as error:
        code = "invalid_json_line" if error.code == "invalid_json" else error.code
        message = str(error).replace("The request body", "The line", 1)
        raise _refused(code, message, error.param) from None


def prefix_of(body: Mapping[str, object]) -> str:
    """Return what sorts prompts so that those that begin alike follow each other: the prefix cache then has them.

    It has a digest of each first piece of the prompt, of lengths that double.
    """
    text = json.dumps([body.get(name) for name in _PROMPT]).encode()
    digest, digests, start, end = blake2b(digest_size=4), "", 0, _FIRST_PIECE
    while end <= len(text):
        digest.update(text[start:end])
        digests += digest.hexdigest()
        start, end = end, 2 * end
    return digests


def _refused(code: str, message: str, param: str | None = None) -> RequestRefused:
    return RequestRefused(message, code=code, param=param)
