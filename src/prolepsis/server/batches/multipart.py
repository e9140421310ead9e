"""Reads multipart/form-data piece by piece (RFC 7578): a file of 200 MB never stands in memory."""

import re
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from email import policy
from email.message import Message
from email.parser import BytesParser

from prolepsis.control.web.errors import RequestRefused

_MOST_HEAD_BYTES = 8192
_BOUNDARY = re.compile(r'multipart/form-data\s*;.*?\bboundary="?([^\s";,]{1,70})"?', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PartHead:
    """The beginning of a field, whose content follows."""

    name: str
    filename: str | None


def boundary_of(content_type: str) -> bytes:
    """Return the boundary that a `Content-Type` names; raises `RequestRefused`."""
    match = _BOUNDARY.match(content_type)
    if match is None:
        raise _refused(f"Content-Type is {content_type[:128]!r}; allowed: multipart/form-data with a boundary")
    return match[1].encode()


async def read_parts(chunks: AsyncIterator[bytes], boundary: bytes) -> AsyncGenerator[PartHead | bytes, None]:
    """Yield the head of each field, and after it its content in pieces; raises `RequestRefused`."""
    delimiter, buffer, is_head, is_preamble = b"\r\n--" + boundary, b"\r\n", False, True
    async for chunk in chunks:
        buffer += chunk
        while True:
            if is_head and buffer.startswith(b"--"):
                return
            mark = b"\r\n\r\n" if is_head else delimiter
            at = buffer.find(mark)
            if at < 0:
                break
            content, buffer = buffer[:at], buffer[at + len(mark) :]
            if is_head:
                yield _head(content)
            elif content and not is_preamble:
                yield content
            is_head, is_preamble = not is_head, False
        if is_head and len(buffer) > _MOST_HEAD_BYTES:
            raise _refused(f"A field's head has more than {_MOST_HEAD_BYTES} bytes; allowed: fewer")
        if not is_head and (num_whole := len(buffer) - len(delimiter) + 1) > 0:  # the rest may begin a delimiter
            if not is_preamble:
                yield buffer[:num_whole]
            buffer = buffer[num_whole:]
    raise _refused("The form ends before its last boundary")


def _head(raw: bytes) -> PartHead:
    message: Message = BytesParser(policy=policy.HTTP).parsebytes(raw.lstrip() + b"\r\n\r\n", headersonly=True)
    params = getattr(message["content-disposition"], "params", {})
    if "name" not in params:
        raise _refused("A field has no name in its Content-Disposition")
    return PartHead(str(params["name"]), str(params["filename"]) if "filename" in params else None)


def _refused(message: str) -> RequestRefused:
    return RequestRefused(f"{message}.", code="invalid_form")
