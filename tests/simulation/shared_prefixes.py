"""Traffic that shares prefixes: conversations of several tenants, and the Mooncake trace."""

import gzip
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.requests import GenerateRequest, SamplingParams
from tests.simulation.replicas import Call

BLOCK = 512
"""Tokens of a block in the trace. Lengths are divided so that a block becomes a page."""
SMALL_VOCABULARY = 250
"""Token ids from 3 up to this one are words of every model here."""


@dataclass(frozen=True, slots=True)
class Conversations:
    """Tenants with a system prompt each; their users hold conversations of some turns. Lengths are in tokens."""

    tenants: int = 8
    per_tenant: int = 8
    turns: tuple[int, int] = (2, 8)
    system: tuple[int, int] = (64, 256)
    message: tuple[int, int] = (16, 96)
    answer: int = 32

    def users(self, seed: int) -> list["User"]:
        """Return the users in the order in which they come."""
        source = random.Random(seed)
        found: list[User] = []
        for tenant in range(self.tenants):
            system = self._text(source, self.system)
            for _ in range(self.per_tenant):
                turns = [self._text(source, self.message) for _ in range(source.randint(*self.turns))]
                found.append(User(f"tenant-{tenant}", (*system, *turns[0]), turns[1:], self.answer))
        source.shuffle(found)
        return found

    def calls(self, seed: int, pause_s: float) -> list[Call]:
        """Return the requests of all users by arrival; a user comes every `pause_s` and asks again after eight."""
        found: list[Call] = []
        for number, user in enumerate(self.users(seed)):
            prompt = user.first
            for turn, message in enumerate([*user.later, ()]):
                request = GenerateRequest(f"{number}-{turn}", prompt, SamplingParams(), cache_salt=user.tenant)
                found.append(Call(pause_s * (number + 8 * turn), request, user.num_output))
                prompt = (*prompt, *range(3, 3 + user.num_output), *message)
        return sorted(found, key=lambda call: call.arrival_s)

    def _text(self, source: random.Random, length: tuple[int, int]) -> tuple[int, ...]:
        return tuple(source.randrange(3, SMALL_VOCABULARY) for _ in range(source.randint(*length)))


@dataclass(frozen=True, slots=True)
class User:
    """One conversation: its first prompt, and what the user says after each answer."""

    tenant: str
    first: tuple[int, ...]
    later: Sequence[tuple[int, ...]]
    num_output: int
    """Tokens of each answer."""


def mooncake(path: Path, speed: float, num_calls: int | None = None) -> Iterator[Call]:
    """Yield the requests of the trace, `speed` times as fast, all lengths divided by `BLOCK` / `PAGE_SIZE`."""
    shrink = BLOCK // PAGE_SIZE
    with gzip.open(path, "rt") as lines:
        for number, line in enumerate(lines):
            if number == num_calls:
                return
            row = json.loads(line)
            tokens = [token for block in row["hash_ids"] for token in _page(block)]
            prompt = tuple(tokens[: max(1, row["input_length"] // shrink)])
            request = GenerateRequest(f"request-{number}", prompt, SamplingParams())
            yield Call(row["timestamp"] / 1000 / speed, request, max(1, row["output_length"] // shrink))


def _page(block: int) -> tuple[int, ...]:
    """Return tokens of a block's own."""
    base = SMALL_VOCABULARY - 3
    return (*(3 + block // base**i % base for i in range(3)), *range(3, PAGE_SIZE))
