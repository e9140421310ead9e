"""A data plane over `table_logits`: it schedules in small chunks, and can hold prefixes, drop drafts and fail."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from prolepsis.adapters.vllm.build import assemble
from prolepsis.adapters.vllm.data_plane import ComputedPass, ComputedRow
from prolepsis.adapters.vllm.start import EXACTNESS
from prolepsis.core.config import EngineConfig
from prolepsis.core.engine_client import EngineInfo
from prolepsis.engine.step import Engine
from prolepsis.engine.text.grammar.grammars import Grammars
from tests.fakes import EOS, VOCAB, Letters, table_logits


@dataclass(slots=True)
class _Held:
    tokens: list[int]
    num_computed: int = 0


INFO = EngineInfo(
    "table", "vllm-table", VOCAB, 256, "fp", "normal", EXACTNESS, (), weights="table", tokenizer="letters"
)


@dataclass(slots=True)
class TablePlane:
    """A `DataPlane`."""

    num_blocks: int = 64
    block_size: int = 16
    chunk: int = 5
    """Most tokens of a prompt in one pass."""
    most_drafted: int = 100
    """Draft tokens of a sequence that have room in a pass."""
    num_cached: int = 0
    """Tokens of each sequence that the prefix cache holds."""
    fail_next: int = 0
    num_resets: int = 0
    salts: dict[str, str] = field(default_factory=dict)
    """Of each sequence ever added."""
    closed: bool = False
    held: dict[str, _Held] = field(default_factory=dict)
    verified: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    """Drafts of all passes."""
    _open: dict[str, int] = field(default_factory=dict)
    """Draft tokens of the sequences that sample in the pass that runs."""

    def add(self, key: str, tokens: Sequence[int], cache_salt: str) -> None:
        assert key not in self.held, f"{key} is added once"
        self.salts[key] = cache_salt
        self.held[key] = _Held(list(tokens), min(self.num_cached, len(tokens) - 1))

    def remove(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.held.pop(key, None)

    def compute(self, drafts: Mapping[str, Sequence[int]]) -> ComputedPass:
        assert not self._open, "the last pass was finished"
        rows: list[ComputedRow] = []
        logits: list[list[float]] = []
        for key, held in self.held.items():
            start, left = held.num_computed, len(held.tokens) - held.num_computed
            if left > self.chunk:
                rows.append(ComputedRow(key, start, self.chunk, samples_next=False))
                held.num_computed += self.chunk
                continue
            draft = tuple(drafts.get(key, ()))[: self.most_drafted]
            rows.append(ComputedRow(key, start, left, len(draft)))
            logits += [table_logits([*held.tokens, *draft[:size]]) for size in range(len(draft) + 1)]
            self._open[key] = len(draft)
            self.verified += [(key, draft)] if draft else []
        if self.fail_next:
            self.fail_next -= 1
            raise RuntimeError("the device is gone")
        return ComputedPass(rows, torch.tensor(logits, dtype=torch.float32).reshape(-1, VOCAB))

    def finish(self, emitted: Mapping[str, Sequence[int]]) -> None:
        assert emitted.keys() == self._open.keys(), "each sequence that samples goes on"
        for key, tokens in emitted.items():
            held = self.held[key]
            assert 1 <= len(tokens) <= 1 + self._open[key], "at most one token more than were drafted"
            held.tokens += tokens
            held.num_computed = len(held.tokens) - 1
        self._open.clear()

    def reset(self) -> None:
        self.num_resets += 1
        self.held.clear()
        self._open.clear()

    def close(self) -> None:
        self.closed = True


def config(**settings: object) -> EngineConfig:
    """Return a configuration of small budgets."""
    return EngineConfig.model_validate(
        {
            "model": "table",
            "max_requests": 8,
            "max_step_tokens": 64,
            "proposers": ("suffix", "prompt_lookup"),
            **settings,
        }
    )


def build(plane: TablePlane, settings: EngineConfig | None = None, grammars: Grammars | None = None) -> Engine:
    """Return an engine whose passes run in `plane`."""
    return assemble(settings or config(), plane, INFO, (EOS,), tokenizer=Letters(), grammars=grammars)
