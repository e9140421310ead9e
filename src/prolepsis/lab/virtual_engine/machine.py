"""What a machine takes for the parts of a step, as measured, and a clock that such times move."""

import json
import random
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import msgspec

from prolepsis.engine.drafting.cost import CostCurve
from prolepsis.engine.rows import Row

FORMAT = "prolepsis-machine/1"


class PassWork(NamedTuple):
    """What a step computes."""

    num_tokens: int
    num_context: int  # cached tokens over all sequences
    num_sequences: int
    num_logits: int  # tokens whose next one is predicted: the last of a prompt, and those of a draft
    num_drafts: int
    num_fed: int  # tokens whose hidden states a draft head takes
    is_first: bool = False  # after a pause, in which caches were lost to others and processors slowed down


PAUSE_S = 0.005


def work_of(rows: Sequence[Row], aux_layers: Sequence[int], pause_s: float) -> PassWork:
    """Return the work of a pass that has not begun; `pause_s`: time since the step before."""
    drafts = [row.draft for row in rows if row.draft is not None]
    num_draft_tokens = sum(len(draft.tokens) for draft in drafts)
    return PassWork(
        num_tokens=sum(row.num_tokens for row in rows) + num_draft_tokens,
        num_context=sum(row.start for row in rows),
        num_sequences=len(rows),
        num_logits=sum(row.num_kept for row in rows) + num_draft_tokens,
        num_drafts=len(drafts),
        num_fed=sum(row.num_tokens for row in rows if _is_fed(row)) if aux_layers else 0,
        is_first=pause_s > PAUSE_S,
    )


def _is_fed(row: Row) -> bool:
    sequence = row.sequence
    return row.start < sequence.num_prompt_tokens or sequence.request.source.speculation.enabled


@dataclass(slots=True)
class VirtualClock:
    """Seconds that pass when told to."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposerCost:
    """Milliseconds of a call: a constant, and amounts for each sequence, each level of the deepest draft, and both."""

    call_ms: float = 0.0
    sequence_ms: float = 0.0
    level_ms: float = 0.0
    sequence_level_ms: float = 0.0
    states_ms: float = 0.0  # of taking the hidden states of a pass
    state_ms: float = 0.0  # the same, for each token
    free: bool = False  # as `Proposer.free`; so is the next
    one_pass: bool = False
    takes_states: bool = False

    def ms(self, num_sequences: int, depth: int) -> float:
        for_each = self.sequence_ms + self.sequence_level_ms * depth
        return self.call_ms + for_each * num_sequences + self.level_ms * depth


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsedSettings:
    """The settings of an engine that a rehearsal reads."""

    max_requests: int = 64
    max_step_tokens: int = 2048
    max_model_len: int = 8192
    num_pages: int = 4096
    num_speculative_tokens: int = 24
    chunk_limit_ms: float = 0.0
    shadow_cost: float = 1.0
    prefix_cache: bool = True


BANDS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Most tokens of the passes of each band; the last band has no bound."""


def band_of(num_tokens: int) -> int:
    """Return the band of passes of so many tokens."""
    return bisect_left(BANDS, num_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastCheck:
    """How wrong a forecast was when it was last held against what was measured."""

    at: float  # Unix time in seconds
    num_requests: int
    errors: Mapping[str, float] = field(default_factory=dict)
    """By figure, relative to what was measured, the median of the recordings; above 0: the forecast was too high."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine with a model, in milliseconds."""

    passes: CostCurve  # passes as they are
    expected: CostCurve  # passes as the engine expects them: its profile of this machine
    scatter: tuple[tuple[float, ...], ...] = ()
    """By band: measured over predicted times of passes, all equally likely; none: as predicted."""
    logits_ms: float = 0.0  # of a pass, for each token whose next one is predicted
    first_ms: float = 0.0  # of the first pass after a pause
    step_ms: float = 0.0  # of a step outside its pass and its proposers
    row_ms: float = 0.0  # the same, for each sequence
    token_ms: float = 0.0  # the same, for each token whose next one is predicted
    draft_ms: float = 0.0  # the same, for each draft that is verified
    request_ms: float = 0.0  # of a request before admission
    proposers: Mapping[str, ProposerCost] = field(default_factory=dict)
    engine: RehearsedSettings = field(default_factory=RehearsedSettings)
    fingerprint: str = ""  # of the model and the build that were measured; empty: not measured
    published: str = ""  # what it is and by which sources, if its figures were published and not measured
    measured_tokens: int = 0  # of the largest pass that was measured, or published; so is the next
    measured_sequences: int = 0
    checks: Mapping[str, LastCheck] = field(default_factory=dict)
    """By the mode of the recording: auto or off; none: it was never checked."""

    def not_measured(self, num_tokens: int, num_sequences: int) -> str | None:
        """Return what of passes up to this size was never measured, and is extrapolated; None: nothing."""
        sizes = (("tokens", num_tokens, self.measured_tokens), ("sequences", num_sequences, self.measured_sequences))
        beyond = (
            f"passes of {size} {what}, above {most}, were not measured" for what, size, most in sizes if size > most
        )
        return next(beyond, None)

    def expected_pass_ms(self, work: PassWork) -> float:
        """Return the milliseconds of a pass before they scatter."""
        ms = self.passes.ms(work.num_tokens, work.num_context) + self.logits_ms * work.num_logits
        return ms + self.first_ms * work.is_first

    def pass_ms(self, work: PassWork, chance: random.Random) -> float:
        """Return the milliseconds that a pass takes this time."""
        expected = self.expected_pass_ms(work)
        return expected * chance.choice(self.scatter[band_of(work.num_tokens)]) if self.scatter else expected

    def host_ms(self, work: PassWork) -> float:
        """Return the milliseconds of a step outside its pass and its proposers."""
        by_size = self.row_ms * work.num_sequences + self.token_ms * work.num_logits
        return self.step_ms + by_size + self.draft_ms * work.num_drafts

    def to_json(self) -> str:
        """Return it as a file holds it."""
        values = {fact.name: getattr(self, fact.name) for fact in fields(self)}
        text = msgspec.json.encode({"format": FORMAT, **values}, enc_hook=lambda curve: json.loads(curve.to_json()))
        return msgspec.json.format(text).decode()

    @classmethod
    def from_json(cls, text: str) -> "Machine":
        """Return the machine of a file. Raises `ValueError` for anything else."""
        data = json.loads(text)
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise ValueError(f"not a measured machine; allowed: format {FORMAT}")
        if unknown := data.keys() - {fact.name for fact in fields(cls)}:
            raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
        return msgspec.convert(data, cls, dec_hook=lambda _, curve: CostCurve.from_json(json.dumps(curve)))
