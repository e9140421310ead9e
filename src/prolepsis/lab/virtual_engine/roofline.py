"""Machines that were published and not measured: rooflines of peak figures, some of which come with the package.

A pass reads the weights, and keys and values of its context, at a share of the peak bandwidth; then it computes its
tokens at a share of the peak arithmetic. The shares are those at which it takes what was published of it.
"""

from collections.abc import Mapping
from importlib.resources import files

import msgspec

from prolepsis.core.config import HEAD_PROPOSERS, PROPOSER_NAMES
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.engine.drafting.cost import CostCurve
from prolepsis.lab.virtual_engine.machine import Machine, ProposerCost, RehearsedSettings

FORMAT = "prolepsis-roofline/1"
_COSTLY = (*HEAD_PROPOSERS, "draft_model", "early_exit", "remote")


class PublishedTime(msgspec.Struct, frozen=True):
    """What a pass of some tokens, behind cached ones, was published to take."""

    what: str
    tokens: int
    context: int
    ms: float


class Roofline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a file. Peaks are of all devices together."""

    format: str
    device: str
    model: str
    engine: str
    weights_gb: float
    draft_gb: float  # weights of a draft head or draft model, which are read for each level of a draft
    kv_bytes_per_token: float
    gflop_per_token: float
    memory_gb: float
    bandwidth_gb_s: float
    tflops: float
    bandwidth_share: float
    tflops_share: float
    times: tuple[PublishedTime, ...]
    sources: tuple[str, ...]

    def ms(self, num_tokens: int, num_context: int) -> float:
        """Return the milliseconds of a pass."""
        arithmetic_ms = num_tokens * self.gflop_per_token / (self.tflops * self.tflops_share)
        return self._read_ms(self.weights_gb + 1e-9 * num_context * self.kv_bytes_per_token) + arithmetic_ms

    def machine(self) -> Machine:
        """Return it for rehearsals; proposers cost what reading their weights takes."""
        tokens, contexts = (1, 1 << 14), (0, 1 << 20)
        curve = CostCurve(tokens, contexts, [[self.ms(number, cached) for cached in contexts] for number in tokens])
        free = {name: ProposerCost(free=True) for name in PROPOSER_NAMES}
        room_gb = 0.9 * self.memory_gb - self.weights_gb - self.draft_gb
        pages = int(1e9 * room_gb / self.kv_bytes_per_token / PAGE_SIZE)
        most_tokens = max(time.tokens for time in self.times) if self.times else 0
        return Machine(
            passes=curve,
            expected=curve,
            proposers=free | dict.fromkeys(_COSTLY, ProposerCost(level_ms=self._read_ms(self.draft_gb))),
            engine=RehearsedSettings(max_requests=256, max_step_tokens=most_tokens or 8192, num_pages=pages),
            measured_tokens=most_tokens,
            measured_sequences=max((time.tokens for time in self.times if time.context), default=0),
            published=f"{self.device}, {self.model}, a roofline of published figures ({', '.join(self.sources)})",
        )

    def _read_ms(self, gigabytes: float) -> float:
        return 1000.0 * gigabytes / (self.bandwidth_gb_s * self.bandwidth_share)


def read_machine(text: str) -> Machine:
    """Return the machine of a file, measured or a roofline; raises `ValueError` for any other."""
    if FORMAT in text[:100]:
        return msgspec.json.decode(text, type=Roofline).machine()
    return Machine.from_json(text)


def shipped() -> Mapping[str, Roofline]:
    """Return the rooflines that come with the package, by name."""
    listed = sorted((files(__package__) / "machines").iterdir(), key=lambda file: file.name)
    return {file.name.removesuffix(".json"): msgspec.json.decode(file.read_bytes(), type=Roofline) for file in listed}
