"""Proposes trees of what followed the last tokens of a sequence in the texts of its owners (`core.messages.owners`).

The texts of one owner are one suffix index (`suffix_index.SharedIndex`), built in a thread of its own when a request of
the owner comes first. Indexes take at most so many bytes together: those that were used longest ago are dropped, and
built again when they are needed.
"""

import time
from array import array
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import structlog

from prolepsis.core.config import CORPUS
from prolepsis.core.messages import SetCorpora, owners
from prolepsis.core.stats import ProposerMemory
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.drafting.proposers.expected_text import draft_of, kernel_for
from prolepsis.engine.drafting.proposers.suffix_index import LEFT_CONTEXT, MAX_MATCH, SharedIndex

_PORTION = 1024  # tokens indexed at once; the engine's thread has no interpreter meanwhile
_PAUSE_S = 0.001  # time for the engine's thread after a portion
_PLACES_PER_TOKEN = 2  # with more places than tokens, fewer n-grams share one
_BYTES_OF_ID = 4
log = structlog.get_logger(__name__)


class CorpusProposer(Proposer):
    """Proposes from corpora. It keeps nothing of a sequence."""

    name = CORPUS
    free = True
    by_tenant = True

    def __init__(self, max_bytes: int = 64 << 20, *, native: bool = True, builder: Executor | None = None) -> None:
        """`builder` runs what builds indexes; default: a thread."""
        self._kernel = kernel_for(native=native)
        self._max_bytes = max_bytes
        self._builder = builder or ThreadPoolExecutor(1, "corpora")
        self._texts: dict[str, tuple[bytes, ...]] = {}
        self._indexes: dict[str, Any] = {}  # by owner, the one that was used longest ago first
        self._building: dict[str, Future[Any]] = {}

    def take_corpora(self, message: SetCorpora) -> None:
        owner = message.owner
        self._texts.pop(owner, None)
        self._indexes.pop(owner, None)
        if (building := self._building.pop(owner, None)) is not None:
            building.cancel()
        if message.texts:
            self._texts[owner] = message.texts

    def serves(self, sequence: SequenceView) -> bool:
        return any(owner in self._texts for owner in _owners(sequence))

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        return [self._draft(sequence, limit) for sequence, limit in zip(sequences, limits, strict=True)]

    def memory(self) -> ProposerMemory:
        texts = sum(len(text) for owned in list(self._texts.values()) for text in owned)
        return ProposerMemory(self.name, index=texts + self._num_bytes)

    def close(self) -> None:
        self._builder.shutdown(wait=False, cancel_futures=True)

    def _draft(self, sequence: SequenceView, limit: int) -> Draft | None:
        """Return the draft that promises most among those of the sequence's owners."""
        drafts: list[Draft] = []
        for owner in _owners(sequence):
            if owner not in self._texts or (owner not in self._indexes and not self._is_built(owner)):
                continue
            index = self._indexes[owner] = self._indexes.pop(owner)  # it was used last
            last = self._kernel.SequenceIndex(False)
            [nodes] = self._kernel.propose(index, [(last, sequence.tokens[-MAX_MATCH:], 0, limit)])
            if nodes is not None:
                drafts.append(draft_of(self.name, nodes, sequence))
        return max(drafts, key=lambda draft: sum(draft.survival), default=None)

    def _is_built(self, owner: str) -> bool:
        """Begin to build an owner's index, or take it where it has been built."""
        building = self._building.get(owner)
        if building is None:
            self._building[owner] = self._builder.submit(self._built, self._texts[owner])
        elif building.done():
            del self._building[owner]
            index = building.result()
            while self._indexes and self._num_bytes + index.num_bytes > self._max_bytes:  # which makes room
                dropped = next(iter(self._indexes))
                del self._indexes[dropped]
                log.info("corpora_dropped", owner=dropped)
            self._indexes[owner] = index
        return owner in self._indexes

    def _built(self, texts: Sequence[bytes]) -> Any:
        num_tokens = sum(len(text) // _BYTES_OF_ID + 1 for text in texts)
        num_bytes = _PLACES_PER_TOKEN * num_tokens * SharedIndex.BYTES_PER_TOKEN
        index = self._kernel.SharedIndex(min(self._max_bytes, num_bytes))
        for text in texts:
            tokens = array("i", text)
            for start in range(0, len(tokens), _PORTION):
                index.add(0, tokens[max(0, start - LEFT_CONTEXT) : start + _PORTION].tolist())
                time.sleep(_PAUSE_S)
        return index

    @property
    def _num_bytes(self) -> int:
        return sum(index.num_bytes for index in list(self._indexes.values()))


def _owners(sequence: SequenceView) -> tuple[str, ...]:
    return owners(sequence.tenant, sequence.traffic_class, sequence.cache_salt)
