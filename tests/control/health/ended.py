"""Requests that have ended, with what drift looks at."""

from collections.abc import Mapping, Sequence

from prolepsis.core.ended import PromptEnded, RequestAbout, RequestEnded
from prolepsis.core.reasons import EffectiveReason
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpecMode, SpeculationChoice
from prolepsis.core.stats import EffectiveMode, JudgedDraft, ProposerCounts, RequestStats

TRAFFIC_CLASS = "chat-completions/standard/free/short"


def ended(
    accepted: Mapping[str, int] | None = None,
    *,
    judged: Mapping[str, Sequence[JudgedDraft]] | None = None,
    mode: SpecMode = "auto",
    proposers: tuple[str, ...] | None = None,
    reason: EffectiveReason = "speculating",
) -> RequestEnded:
    """Return a request of ten tokens, with what each proposer brought of them."""
    stats = RequestStats(num_output_tokens=10, mode=EffectiveMode("on", reason, 1))
    stats.proposers = {name: ProposerCounts(num_accepted=number) for name, number in (accepted or {}).items()}
    stats.judged = {name: list(drafts) for name, drafts in (judged or {}).items()}
    speculation = SpeculationChoice(mode, proposers=proposers)
    request = GenerateRequest("r", (1,), SamplingParams(), traffic_class=TRAFFIC_CLASS, speculation=speculation)
    prompt = PromptEnded(
        request=request,
        end="finished",
        error=None,
        stats=stats,
        num_shown_tokens=10,
        answer="complete",
        tokens=(),
        finish_reasons=("stop",),
        delivery={},
    )
    about = RequestAbout(answer_id="a", tenant="", key_id="", tier="standard", route="/", model="tiny")
    return RequestEnded(about=about, end="finished", error=None, prompts=(prompt,))
