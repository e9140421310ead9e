"""`prolepsis exact`: speculation against plain decoding on the user's own prompts."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from prolepsis.control.audit.commands.acts import actor, record_act
from prolepsis.control.correctness.replay import replay
from prolepsis.core.ask import TimedAnswer, ask
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.config import EngineConfig
from prolepsis.core.engine_client import EngineClient, EngineInfo
from prolepsis.core.errors import ConfigError
from prolepsis.core.recording import Recording
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.core.terminal.config import Settings, listed
from prolepsis.core.terminal.documents import print_reply
from prolepsis.core.terminal.flags import configured
from prolepsis.core.terminal.output import FAILED, OK, AsJson, note, stdout
from prolepsis.engine.text.tokenizer import ChatTokenizer
from prolepsis.lab.measure.arrivals import in_flight
from prolepsis.lab.measure.prompts import EncodedPrompt, Prompt, encode_prompts, load_prompts

PLAIN_SHARE = 4
"""In the mixed run every fourth request decodes plainly, so that batches hold both."""
Run = Literal["plain", "alone", "mixed"]
_COLUMNS = {
    "requests": ("id", "category", "decoding", "temperature", "seed", "tokens=num_tokens", "identical"),
    "requests.differences": (
        *("id", "decoding", "run", "position", "plain", "text=plain_text", "speculated=other", "text=other_text"),
        *("kind", "margin"),
    ),
}


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first token of a run that differs from plain decoding; None: the run had ended there."""

    run: str
    position: int  # output position, from 0
    plain: int | None
    other: int | None
    kind: Literal["near_tie", "structural"] | None = None
    """None: not classified, as one of the runs had ended, or plain decoding again gave the other token too."""
    margin: float | None = None  # distance of the two tokens' scores, in logits


@dataclass(frozen=True, slots=True)
class Job:
    """The check that the command line describes."""

    prompts: tuple[Prompt, ...]
    max_tokens: int
    temperature: float
    seed: int
    concurrency: int


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt decoded greedily or sampled with a seed: plainly alone, speculated alone, and in a batch with others."""

    prompt: EncodedPrompt
    decoding: Literal["greedy", "sampled"]
    params: SamplingParams
    answers: dict[Run, TimedAnswer] = field(default_factory=dict)
    differences: list[FirstDifference] = field(default_factory=list)

    def request(self, run: Run, suffix: str, *, speculate: bool) -> GenerateRequest:
        """Return the request of a run; plain decoding reuses nobody's cache."""
        request_id = f"exact {run} {suffix}"
        return GenerateRequest(
            request_id=request_id,
            prompt_token_ids=self.prompt.token_ids,
            params=self.params,
            cache_salt=request_id if run == "plain" else f"exact {run}",
            speculation=SpeculationChoice("auto" if speculate else "off"),
        )


@configured(EngineConfig)
def exact(
    settings: Settings,
    *,
    prompts: Annotated[
        Path | None, typer.Option(help="JSON lines with id, category and prompt; default: a small set in the package")
    ] = None,
    categories: Annotated[str, typer.Option(help="use only prompts of these categories, comma-separated")] = "",
    max_tokens: Annotated[int, typer.Option(help="most tokens of an answer")] = 128,
    temperature: Annotated[float, typer.Option(help="temperature of the sampled requests")] = 0.8,
    seed: Annotated[int, typer.Option(help="seed of the first sampled request; each further request adds 1")] = 0,
    concurrency: Annotated[int, typer.Option(min=1, help="requests in flight in the run with batches")] = 8,
    as_json: AsJson = False,
) -> None:
    """Check on your own prompts that speculation changes no token; exit status 1 if any token differs.

    Every prompt is decoded greedily and with sampling, three times each: without speculation, with speculation, and
    with speculation in batches that also hold requests without.
    """
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=seed)
    params.require_answer()
    params.validate(vocab_size=1)
    if temperature == 0:
        raise ConfigError(
            "temperature is 0; allowed: above 0, as every request also runs greedily", param="temperature"
        )
    job = Job(load_prompts(prompts, listed(categories)), max_tokens, temperature, seed, concurrency)

    async def checked() -> "Report":
        from prolepsis.server.cli.engine import running

        async with running(settings) as engine:
            return await check(job, engine.client, engine.tokenizer)

    report = asyncio.run(checked())
    verdict = "passed" if report.identical else "failed"
    record_act(AuditEvent(actor=actor(), action=f"exact.{verdict}", versions=report.info.versions))
    raise typer.Exit(print_result(report, as_json=as_json))


def print_result(report: "Report", *, as_json: bool) -> int:
    """Print the report and return the exit status: 1 if any token differs."""
    tables = ("requests",) if report.identical else ("requests", "requests.differences")
    print_reply(report.as_json(), {name: _COLUMNS[name] for name in tables}, as_json=as_json)
    if not as_json:
        different = f"different on {report.num_different} requests"
        stdout().print("identical on every request" if report.identical else different)
    return OK if report.identical else FAILED


async def check(job: Job, client: EngineClient, tokenizer: ChatTokenizer) -> "Report":
    """Run the three runs of every case and compare them; raises the error of a request that fails.

    Cases are greedy and sampled in turn, so that a mixed batch holds both.
    """
    greedy = SamplingParams(temperature=0.0, max_tokens=job.max_tokens)
    cases = list[Case]()
    for i, prompt in enumerate(encode_prompts(job.prompts, tokenizer)):
        cases.append(Case(prompt, "greedy", greedy))
        cases.append(Case(prompt, "sampled", replace(greedy, temperature=job.temperature, seed=job.seed + i)))
    runs: dict[Run, tuple[str, int, Callable[[int], bool]]] = {  # what is said, how many at once, who speculates
        "plain": ("plain", 1, lambda i: False),
        "alone": ("speculated one at a time", 1, lambda i: True),
        "mixed": (f"{job.concurrency} at a time", job.concurrency, lambda i: i % PLAIN_SHARE != PLAIN_SHARE - 1),
    }
    for run, (words, at_once, speculates) in runs.items():
        note(f"{len(cases)} requests, {words}")
        requests = [case.request(run, str(i), speculate=speculates(i)) for i, case in enumerate(cases)]
        answers = await in_flight([partial(ask, client, request) for request in requests], at_once)
        for case, answer in zip(cases, answers, strict=True):
            case.answers[run] = answer
    for number, case in enumerate(cases):
        plain = case.answers["plain"].token_ids
        for run, answer in case.answers.items():
            if (first := difference(run, plain, answer.token_ids)) is not None:
                request = case.request(run, f"again {number}", speculate=False)
                case.differences.append(await classified(client, request, answer.token_ids, first))
    return Report(job, client.info, cases, tokenizer)


def difference(run: str, plain: Sequence[int], answer: Sequence[int]) -> FirstDifference | None:
    """Return the first difference of an answer from the plain one, not classified; None if they are equal."""
    if (at := first_difference(plain, answer)) is None:
        return None
    token, other = (ids[at] if at < len(ids) else None for ids in (plain, answer))
    return FirstDifference(run, at, token, other)


async def classified(
    client: EngineClient, request: GenerateRequest, answer: tuple[int, ...], first: FirstDifference
) -> FirstDifference:
    """Return the difference with the kind that a replay of the answer gives it, by the logits of its own pass."""
    if first.plain is not None and first.other is not None:
        again = (await replay(client, Recording(request, (answer,)), request.request_id)).differences.get(0)
        if again is not None and again.position == first.position:
            return replace(first, kind=again.kind, margin=again.margin)
    return first


@dataclass(frozen=True, slots=True)
class Report:
    """All cases with their differences."""

    job: Job
    info: EngineInfo
    cases: Sequence[Case]
    tokenizer: ChatTokenizer

    @property
    def num_different(self) -> int:
        return sum(bool(case.differences) for case in self.cases)

    @property
    def identical(self) -> bool:
        return not self.num_different

    def as_json(self) -> dict[str, object]:
        """Return the report for programs."""
        speculated = [case.answers[run] for case in self.cases for run in ("alone", "mixed")]
        settings = ("max_tokens", "temperature", "seed", "concurrency")
        facts = ("exactness", "exactness_reason", "model", "forward")
        return {
            "identical": self.identical,
            "num_requests": len(self.cases),
            "num_different": self.num_different,
            "num_tokens": sum(len(answer.token_ids) for answer in speculated),
            "num_draft_tokens": sum(answer.stats.num_draft_tokens for answer in speculated),
            "num_accepted": sum(answer.stats.num_accepted for answer in speculated),
            **{name: getattr(self.info, name) for name in facts},
            **{name: getattr(self.job, name) for name in settings},
            "requests": [self._described(case) for case in self.cases],
        }

    def _described(self, case: Case) -> dict[str, object]:
        return {
            "id": case.prompt.id,
            "category": case.prompt.category,
            "decoding": case.decoding,
            "temperature": case.params.temperature,
            "seed": case.params.seed,
            "num_tokens": len(case.answers["plain"].token_ids),
            "identical": not case.differences,
            "differences": [
                {**asdict(each), "plain_text": self._text(each.plain), "other_text": self._text(each.other)}
                for each in case.differences
            ],
        }

    def _text(self, token: int | None) -> str | None:
        return None if token is None else self.tokenizer.decode([token], skip_special_tokens=False)


def first_difference(plain: Sequence[int], other: Sequence[int]) -> int | None:
    """Return the first position at which the two differ, also in length; None if they are equal."""
    for i, (a, b) in enumerate(zip(plain, other, strict=False)):
        if a != b:
            return i
    return None if len(plain) == len(other) else min(len(plain), len(other))
