"""A smaller causal model with the target's vocabulary as proposer: drafts a chain, all sequences of a step together.

It keeps its own K/V, catches up on tokens it missed in its first pass of a step, then adds one token per sequence and
pass. Rejected tokens are overwritten: what is cached is compared with what was committed. At temperature 0 it drafts
its argmax; above, the argmax of log-probabilities plus the sequence's keyed noise, the same that the target's sample is
drawn with, which accepts up to 30 points more than independent noise (Gumbel coupling, arXiv 2408.07978).
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.stats import ProposerMemory
from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.drafting.proposers.vocabulary import ComparedVocabulary, require_same_vocabulary
from prolepsis.engine.models.protocol import KVCache, SequenceInput, TargetModel, pack
from prolepsis.engine.sampling.noise import gumbel

_MAX_CATCH_UP = 512  # tokens a sequence catches up on in one step; a longer prompt takes several steps


@dataclass(slots=True)
class DraftState:
    """One sequence's pages and the tokens whose K/V they hold, in order."""

    pages: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    num_confirmed: int = 0  # leading `written` tokens known to equal the sequence's

    def reuse(self, tokens: Sequence[int]) -> int:
        """Drop tokens that were drafted but not committed; return how many of `tokens` are cached, never all."""
        count, known = self.num_confirmed, min(len(self.written), len(tokens) - 1)
        while count < known and self.written[count] == tokens[count]:
            count += 1
        self.num_confirmed = min(count, known)
        del self.written[self.num_confirmed :]
        return self.num_confirmed


class DraftCache:
    """States of live sequences over a fixed number of pages; the longest unused gives way, so no request can fail."""

    def __init__(self, num_pages: int) -> None:
        self._free = list(range(num_pages))
        self._states: OrderedDict[str, DraftState] = OrderedDict()

    @property
    def num_free(self) -> int:
        return len(self._free)

    def claim(self, key: str, num_slots: int, keep: frozenset[str]) -> DraftState | None:
        """Return the sequence's state with `num_slots` slots, evicting others than `keep`; None if there is no room."""
        state = self._states.setdefault(key, DraftState())
        self._states.move_to_end(key)
        missing = -(-num_slots // PAGE_SIZE) - len(state.pages)
        while missing > len(self._free):
            victim = next((k for k in self._states if k != key and k not in keep), None)
            if victim is None:
                return None
            self.drop(victim)
        for _ in range(missing):
            state.pages.append(self._free.pop())
        return state

    def drop(self, key: str) -> None:
        """Free a sequence's pages; unknown keys are ignored."""
        state = self._states.pop(key, None)
        if state:
            self._free += state.pages


@dataclass(slots=True)
class _Chain:
    """One sequence while its draft grows; `feed` are the tokens whose K/V the next pass writes."""

    index: int
    sequence: SequenceView
    state: DraftState
    feed: list[int]
    limit: int
    drafted: list[int]


class DraftModelProposer(Proposer):
    """Proposes chains of `model`; memory is `num_pages` pages of it. Sequences without room get no draft.

    Raises `VocabularyMismatch` if token ids differ.
    """

    name = "draft_model"

    def __init__(
        self,
        model: TargetModel,
        vocabulary: ComparedVocabulary,
        target_vocabulary: ComparedVocabulary,
        *,
        num_pages: int,
        cache: KVCache | None = None,
    ) -> None:
        """`cache`: of so many pages; None: it makes one."""
        require_same_vocabulary(vocabulary, target_vocabulary)
        self._vocab_size = min(model.info.vocab_size, max(target_vocabulary.vocab.values(), default=-1) + 1)
        self._model = model
        self.shares_target = model.info.device != "cpu"
        self._kv = model.make_cache(num_pages) if cache is None else cache
        self._cache = DraftCache(num_pages)
        self._vocabulary = torch.arange(self._vocab_size)

    def memory(self) -> ProposerMemory:
        info = self._model.info
        return ProposerMemory(self.name, weights=info.weight_bytes, kv=info.page_bytes * self._kv.num_pages)

    def lend(self) -> None:
        self._cache = DraftCache(self._kv.num_pages)

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        drafts: list[Draft | None] = [None] * len(sequences)
        try:
            with torch.inference_mode():
                chains = self._start(sequences, limits)
                growing = chains
                while growing:
                    growing = self._grow(growing)
        except Exception:
            for sequence in sequences:  # slots may be half written; the caller contains and counts
                self._cache.drop(sequence.key)
            raise
        for c in chains:
            if c.drafted:
                drafts[c.index] = chain(tuple(c.drafted), self.name)
        return drafts

    def forget(self, sequence: SequenceView) -> None:
        self._cache.drop(sequence.key)

    def _start(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[_Chain]:
        chains: list[_Chain] = []
        kept: set[str] = set()
        for i, (sequence, limit) in enumerate(zip(sequences, limits, strict=True)):
            num_slots = len(sequence.tokens) + limit - 1
            if limit < 1 or num_slots > self._model.info.max_positions:
                continue
            state = self._cache.claim(sequence.key, num_slots, frozenset(kept))
            if state is not None:
                kept.add(sequence.key)
                missed = list(sequence.tokens[state.reuse(sequence.tokens) :])
                behind = len(missed) > _MAX_CATCH_UP
                chains.append(_Chain(i, sequence, state, missed[:_MAX_CATCH_UP], 0 if behind else limit, []))
        return chains

    def _grow(self, chains: list[_Chain]) -> list[_Chain]:
        """Run one pass, add a token to each chain below its limit; return the chains that continue."""
        batch = pack([SequenceInput(c.feed, len(c.state.written), c.state.pages) for c in chains])
        logits = self._model.forward(batch, self._kv)[:, : self._vocab_size]
        for c in chains:
            c.state.written += c.feed
        sampled = [i for i, c in enumerate(chains) if c.sequence.params.temperature > 0]
        if sampled:
            logits = logits.clone()
        for i in sampled:
            sequence = chains[i].sequence
            position = len(sequence.tokens) - sequence.num_prompt_tokens + len(chains[i].drafted)
            noise = gumbel(sequence.noise_key, position, self._vocabulary)
            logits[i] = logits[i] / sequence.params.temperature + noise.to(logits)
        tokens: list[int] = logits.argmax(-1).tolist()
        growing: list[_Chain] = []
        for c, token in zip(chains, tokens, strict=True):
            if len(c.drafted) < c.limit:
                c.drafted.append(token)
                c.feed = [token]
                if len(c.drafted) < c.limit:
                    growing.append(c)
        return growing
