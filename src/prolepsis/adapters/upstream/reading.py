"""Reads what an upstream engine sends, within bounds: nothing that it says takes all of the memory or of the loop."""

import asyncio
import math
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing

import httpx2

from prolepsis.adapters.upstream.api import Chunk, ChunkReader, UpstreamMalformed, payload
from prolepsis.core.json_size import size_of
from prolepsis.core.stats import ProposerCounts

BODY_BYTES = 2**20
"""Of an answer that is no stream; what an error says beyond it is not read."""
METRICS_BYTES = 2**23
LINE_BYTES = 2**23
"""Of one event of a stream: SGLang repeats all tokens so far in each."""
THREAD_BYTES = 2**16
"""A longer event is parsed in a thread."""
MOST_MEMBERS = 2**16
"""Fields, lists and objects of such an event; a few bytes of them take long to read, and much memory."""
MOST_POSITIONS = 1024
"""Of a draft's tokens that are counted."""
_MOST = 2**31


class Lines:
    """Cuts bytes into lines; raises `UpstreamMalformed` beyond `LINE_BYTES`."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[str]:
        """Yield the lines that `data` completes, but for empty ones."""
        self._rest += data
        if b"\n" in data:
            *lines, rest = self._rest.split(b"\n")
            self._rest = bytearray(rest)
            for line in lines:
                if line:
                    yield line.decode(errors="replace").rstrip("\r")
        if len(self._rest) > LINE_BYTES:
            raise UpstreamMalformed(f"said a line of more than {LINE_BYTES} bytes")


def check_plain(response: httpx2.Response) -> None:
    """Raise `UpstreamMalformed` for a compressed body, which was not asked for."""
    encoding = response.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise UpstreamMalformed(f"encodes its answer as {encoding[:40]!r}; asked for: identity")


async def chunks_of(response: httpx2.Response, reader: ChunkReader) -> AsyncGenerator[Chunk, None]:
    """Yield what a stream says; raises `UpstreamFault`."""
    check_plain(response)
    lines = Lines()
    async with aclosing(response.aiter_raw()) as parts:
        async for part in parts:
            for line in lines.feed(part):
                if (chunk := await _read(reader, line)) is not None:
                    yield chunk
    for line in lines.feed(b"\n"):
        if (chunk := await _read(reader, line)) is not None:
            yield chunk


async def _read(reader: ChunkReader, line: str) -> Chunk | None:
    if len(line) <= THREAD_BYTES:
        return read_line(reader, line)
    members, _ = await asyncio.to_thread(size_of, line.encode())
    if members > MOST_MEMBERS:
        raise UpstreamMalformed(f"said an event of {members} fields, lists and objects; allowed: {MOST_MEMBERS}")
    return await asyncio.to_thread(read_line, reader, line)


def read_line(reader: ChunkReader, line: str) -> Chunk | None:
    """Return what one line of a stream says, None for one that says nothing; raises `UpstreamFault`."""
    data = payload(line)
    if data is None:
        return None
    try:
        return checked(reader.read(data))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UpstreamMalformed(f"said what its API does not: {str(data)[:200]}") from error


def checked(chunk: Chunk) -> Chunk:
    """Return the chunk; raises `ValueError` where a value is of another type than its API says."""
    _check_ints("token ids", chunk.token_ids)
    if not isinstance(chunk.text, str):
        raise ValueError(f"text is {chunk.text!r:.80}")
    drafts = chunk.drafts or ProposerCounts()
    figures = (chunk.num_cached_tokens, drafts.num_drafts, drafts.num_draft_tokens, drafts.num_accepted)
    _check_ints("counts", figures)
    for position in drafts.per_position:
        _check_ints("counts by position", position)
    pairs = ((drafts.num_draft_tokens, drafts.num_accepted), *drafts.per_position)
    if any(accepted > drafted for drafted, accepted in pairs):
        raise ValueError("more drafted tokens are accepted than there were")
    if len(drafts.per_position) > MOST_POSITIONS:
        raise ValueError(f"drafts have {len(drafts.per_position)} positions; allowed: {MOST_POSITIONS}")
    for entry in chunk.logprobs or ():
        _check_ints("token ids", [token for token, _ in entry.top])
        for value in (entry.logprob, *(logprob for _, logprob in entry.top)):
            if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value) or value > 0.0:
                raise ValueError(f"a log-probability is {value!r:.80}")
    return chunk


def _check_ints(what: str, values: Iterable[object]) -> None:
    for value in values:
        if type(value) is not int or not 0 <= value < _MOST:
            raise ValueError(f"{what} hold {value!r:.80}")


async def start_of(response: httpx2.Response, limit: int = BODY_BYTES) -> bytes:
    """Return the first `limit` bytes of a body; the rest is not read."""
    check_plain(response)
    read = bytearray()
    async with aclosing(response.aiter_raw()) as parts:
        async for part in parts:
            read += part
            if len(read) > limit:
                break
    return bytes(read[:limit])
