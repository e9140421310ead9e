"""A tokenizer, prompts and an engine that answers like a table, for tests of bench and exact."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from prolepsis.core.engine_client import EngineInfo
from prolepsis.core.events import Difference, Event, Finished, Tokens
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import ProposerCounts, RequestStats
from prolepsis.lab.measure.prompts import Prompt
from tests.fake_client import FakeEngineClient

PROPOSERS = ("suffix", "prompt_lookup")
INFO = EngineInfo("fake", "scripted", 256, 128, "fp_fake", "strict", "scripted", PROPOSERS)
NUM_TOKENS = 6


class ByteTokenizer:
    """One token a byte; the chat template adds a 1 before and a 2 behind."""

    eos_token_ids = (0,)
    chat_template: str | None = "one"

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [*([3] if add_special_tokens else []), *text.encode()]

    def apply_chat_template(self, messages: Sequence[Mapping[str, object]]) -> list[int]:
        return [1, *str(messages[0]["content"]).encode(), 2]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return bytes(token_ids).decode(errors="replace")


def two_prompts() -> tuple[Prompt, ...]:
    return (Prompt("p1", "code", "abc"), Prompt("p2", "chat", "abcdef"))


def write_prompts(path: Path) -> Path:
    path.write_text(
        '{"id": "p1", "category": "code", "prompt": "abc"}\n{"id": "p2", "category": "chat", "prompt": "abcdef"}\n'
    )
    return path


Alter = Callable[[GenerateRequest, bool], list[int]]
"""(request, speculating) -> its tokens."""


def tokens_of(request: GenerateRequest, speculating: bool) -> list[int]:
    """A function of prompt, temperature and seed, as an exact engine's are."""
    key = sum(request.prompt_token_ids) + request.params.seed + int(10 * request.params.temperature)
    return [(key + i) % 200 for i in range(NUM_TOKENS)]


def table_client(
    alter: Alter = tokens_of, plain_s: float = 0.03, speculated_s: float = 0.01, info: EngineInfo = INFO
) -> FakeEngineClient:
    """Answers in so many seconds, with three tokens a pass where the plan and the request let it speculate."""

    def script(request: GenerateRequest) -> Iterable[Event | float]:
        plan = client.plans[-1] if client.plans else SpecPlan()
        speculating = plan.num_speculative_tokens > 0 and request.speculation.enabled
        yield speculated_s if speculating else plain_s
        tokens = alter(request, speculating)
        if request.emitted:  # a replay: all differences are of a kind
            tokens, [before] = tokens_of(request, False), request.emitted
            at = next((i for i, pair in enumerate(zip(before, tokens, strict=False)) if pair[0] != pair[1]), None)
            found = None if at is None else Difference(at, before[at], tokens[at], "near_tie", 0.03)
            yield Tokens(request.request_id, 0, tuple(tokens), position=0, difference=found)
            yield Finished(request.request_id, _stats(len(tokens), speculating))
            return
        width = 3 if speculating else 1
        for start in range(0, len(tokens), width):
            yield Tokens(request.request_id, 0, tuple(tokens[start : start + width]), position=start)
        yield Finished(request.request_id, _stats(len(tokens), speculating))

    client = FakeEngineClient(script, info)
    return client


def _stats(num_tokens: int, speculating: bool) -> RequestStats:
    steps = num_tokens // 3 if speculating else num_tokens
    stats = RequestStats(num_output_tokens=num_tokens, num_steps=steps, queue_s=0.001, compute_s=0.009)
    if speculating:
        stats.proposers["suffix"] = ProposerCounts(num_drafts=steps, num_draft_tokens=2 * steps, num_accepted=2 * steps)
    return stats
