"""What a machine takes for the parts of a step, as measured, and a clock that such times move."""

import json
import random
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import msgspec

from prolepsis.engine.drafting.cost import CostCurve
from prolepsis.engine.rows import Row

FORMAT = "prolepsis-machine/1"


class VirtualClock:
    """Seconds that pass when told to."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposerCost:
    """Milliseconds of a call: a constant, and amounts for each sequence and for each level of the deepest draft."""

    call_ms: float = 0.0
    sequence_ms: float = 0.0
    level_ms: float = 0.0
    free: bool = False
    """As `Proposer.free`; so is the next."""
    one_pass: bool = False

    def ms(self, num_sequences: int, depth: int) -> float:
        return self.call_ms + self.sequence_ms * num_sequences + self.level_ms * depth


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


BANDS = (1, 4, 16, 64)
"""Most tokens of the passes of each band; the last band has no bound."""


def band_of(num_tokens: int) -> int:
    """Return the band of passes of so many tokens."""
    return bisect_left(BANDS, num_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine with a model, in milliseconds."""

    passes: CostCurve
    """Passes as they are."""
    expected: CostCurve
    """Passes as the engine expects them: its profile of this machine."""
    scatter: Sequence[Sequence[float]] = ()
    """By band: measured over predicted times of passes, all equally likely; none: as predicted."""
    step_ms: float = 0.0
    """Of a step outside its pass and its proposers."""
    row_ms: float = 0.0
    """The same, for each row."""
    token_ms: float = 0.0
    """The same, for each token of the pass."""
    draft_ms: float = 0.0
    """The same, for each draft that is verified."""
    request_ms: float = 0.0
    """Of a request before admission."""
    proposers: Mapping[str, ProposerCost] = field(default_factory=dict)
    engine: RehearsedSettings = field(default_factory=RehearsedSettings)
    fingerprint: str = ""
    """Of the model and the build that were measured; empty: not measured."""
    published: str = ""
    """What it is and by which sources, if its figures were published and not measured."""

    def pass_ms(self, rows: Sequence[Row], chance: random.Random) -> float:
        """Return the milliseconds that a pass of these rows takes this time."""
        num_tokens, num_context = sum(row.num_scheduled_tokens for row in rows), sum(row.start for row in rows)
        predicted = self.passes.ms(num_tokens, num_context)
        return predicted * chance.choice(self.scatter[band_of(num_tokens)]) if self.scatter else predicted

    def host_ms(self, rows: Sequence[Row]) -> float:
        """Return the milliseconds of a step outside its pass and its proposers."""
        num_tokens = sum(row.num_scheduled_tokens for row in rows)
        num_drafts = sum(row.draft is not None for row in rows)
        by_size = self.row_ms * len(rows) + self.token_ms * num_tokens
        return self.step_ms + by_size + self.draft_ms * num_drafts

    def to_json(self) -> str:
        """Return it as a file holds it."""
        curves = {name: json.loads(getattr(self, name).to_json()) for name in ("passes", "expected")}
        rest = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in curves}
        return msgspec.json.format(msgspec.json.encode({"format": FORMAT, **curves, **rest})).decode()

    @classmethod
    def from_json(cls, text: str) -> "Machine":
        """Return the machine of a file. Raises `ValueError` for anything else."""
        data = json.loads(text)
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise ValueError(f"not a measured machine; allowed: format {FORMAT}")
        passes, expected = (CostCurve.from_json(json.dumps(data.pop(name, None))) for name in ("passes", "expected"))
        return replace(cls(passes=passes, expected=expected), **msgspec.structs.asdict(msgspec.convert(data, _Rest)))


class _Rest(msgspec.Struct, forbid_unknown_fields=True):
    """What a file says besides the curves."""

    scatter: tuple[tuple[float, ...], ...] = ()
    step_ms: float = 0.0
    row_ms: float = 0.0
    token_ms: float = 0.0
    draft_ms: float = 0.0
    request_ms: float = 0.0
    proposers: dict[str, ProposerCost] = {}
    engine: RehearsedSettings = RehearsedSettings()
    fingerprint: str = ""
    published: str = ""
