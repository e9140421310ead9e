"""What the tests of continuations share: answers sample by sample, and requests that continue from a cut in them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from prolepsis.core.continuation import Continuation
from prolepsis.core.events import Event, Finished, FinishReason, TokenLogprobs, Tokens
from prolepsis.core.exact_group import ExactGroup
from prolepsis.core.messages import ApplyPlan
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest
from prolepsis.engine.step import Engine
from tests.fakes import drain, submit, terminals


@dataclass(frozen=True, slots=True)
class Sample:
    """All that a consumer learns of one sample."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    start: int = 0
    """Output position of the first token."""

    def after(self, cut: int) -> "Sample":
        """Return what is left of it behind its first `cut` tokens."""
        return replace(self, tokens=self.tokens[cut:], logprobs=self.logprobs[cut:], start=self.start + cut)


Answer = dict[int, Sample]
"""By index of the sample."""


def answers_of(events: Iterable[Event]) -> dict[str, Answer]:
    """Return the samples of each request; checks that the events of each follow one another."""
    found: dict[str, Answer] = {}
    for event in events:
        if isinstance(event, Tokens):
            samples = found.setdefault(event.request_id, {})
            before = samples.get(event.index, Sample((), (), None, None, event.position))
            assert event.position == before.start + len(before.tokens), "no token twice, none lost"
            assert before.finish_reason is None, "nothing follows the end"
            samples[event.index] = Sample(
                before.tokens + event.token_ids,
                before.logprobs + (event.logprobs or ()),
                event.finish_reason,
                event.stop_reason,
                before.start,
            )
    return found


def serve(engine: Engine, *sources: GenerateRequest, plan: SpecPlan | None = None) -> dict[str, Answer]:
    """Return the answers to requests that all have to finish."""
    engine.send(ApplyPlan(plan or SpecPlan()))
    submit(engine, *sources)
    events = drain(engine)
    assert [end for end in terminals(events).values() if not isinstance(end, Finished)] == []
    return answers_of(events)


def cut(source: GenerateRequest, group: ExactGroup, answer: Answer, *cuts: int) -> GenerateRequest:
    """Return the request that continues after the first tokens of each sample."""
    emitted = tuple(answer[index].tokens[:count] for index, count in enumerate(cuts))
    name = f"{source.request_id} cut {cuts}"
    return replace(source, request_id=name, continue_from=Continuation(emitted=emitted, group=group))


def check_cuts(
    engine: Engine,
    source: GenerateRequest,
    answer: Answer,
    cuts: Sequence[tuple[int, ...]],
    plan: SpecPlan | None = None,
) -> None:
    """Let one engine continue the request from all cuts at once, and hold each answer against the undisturbed one."""
    sources = {at: cut(source, engine.info.exact_group, answer, *at) for at in cuts}
    found = serve(engine, *sources.values(), plan=plan)
    for at, continued in sources.items():
        left = {index: answer[index].after(count) for index, count in enumerate(at)}
        assert found[continued.request_id] == {index: sample for index, sample in left.items() if sample.tokens}, at
