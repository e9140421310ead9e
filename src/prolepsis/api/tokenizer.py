"""Tokenisation off the event loop, in threads of its own: key checks do not wait behind long prompts."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar

INLINE_CHARACTERS = 8192
"""Longer texts, and prompts with tools, are tokenised off the event loop."""
_Value = TypeVar("_Value")
_limiter: RunVar[CapacityLimiter] = RunVar("tokenisation_threads")


async def in_thread(work: Callable[[], _Value]) -> _Value:
    """Return what `work` returns; at most one thread a core does such work."""
    return await to_thread.run_sync(work, limiter=_threads())


async def off_loop(characters: int, work: Callable[[], _Value]) -> _Value:
    """Return what `work` returns, in a thread where it concerns so many characters that others would wait."""
    return await in_thread(work) if characters > INLINE_CHARACTERS else work()


def _threads() -> CapacityLimiter:
    """One limiter an event loop."""
    try:
        return _limiter.get()
    except LookupError:
        limiter = CapacityLimiter(os.cpu_count() or 1)
        _limiter.set(limiter)
        return limiter


class Tokenizer(Protocol):
    """Text to token ids and back. Safe to use from several threads."""

    @property
    def chat_template(self) -> str | None: ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> list[int]: ...


class Verbatim:
    """A tokenizer's decoder that shows special tokens too."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def decode(self, token_ids: Sequence[int], /) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)
