"""`prolepsis exact`: speculation against plain decoding on the user's own prompts."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from prolepsis.control.audit.commands.acts import actor, record_act
from prolepsis.control.correctness.replay import replay
from prolepsis.core.ask import TimedAnswer, ask
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.config import EngineConfig
from prolepsis.core.engine_client import EngineClient
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
class Case:
    """A prompt decoded greedily or sampled with a seed: plainly alone, speculated alone, and in a batch with others."""

    prompt: EncodedPrompt
    params: SamplingParams
    answers: dict[str, TimedAnswer] = field(default_factory=dict)
    differences: list[FirstDifference] = field(default_factory=list)

    def request(self, run: str, suffix: str, *, speculate: bool) -> GenerateRequest:
        """Return the request of a run; plain decoding reuses nobody's cache."""
        request_id = f"exact {run} {suffix}"
        return GenerateRequest(
            request_id=request_id,
            prompt_token_ids=self.prompt.token_ids,
            params=self.params,
            cache_salt=request_id if run == "plain" else f"exact {run}",
            speculation=SpeculationChoice("auto" if speculate else "off"),
        )

    def described(self, tokenizer: ChatTokenizer) -> dict[str, object]:
        """Return the case for programs, with the texts of the tokens that differ."""

        def text(token: int | None) -> str | None:
            return None if token is None else tokenizer.decode([token], skip_special_tokens=False)

        return {
            "id": self.prompt.id,
            "category": self.prompt.category,
            "decoding": "sampled" if self.params.temperature else "greedy",
            "temperature": self.params.temperature,
            "seed": self.params.seed,
            "num_tokens": len(self.answers["plain"].token_ids),
            "identical": not self.differences,
            "differences": [
                {**asdict(each), "plain_text": text(each.plain), "other_text": text(each.other)}
                for each in self.differences
            ],
        }


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
    given = load_prompts(prompts, listed(categories))

    async def checked() -> dict[str, Any]:
        from prolepsis.server.cli.engine import running

        async with running(settings) as engine:
            document = await check(given, params, concurrency, engine.client, engine.tokenizer)
            verdict, versions = "passed" if document["identical"] else "failed", engine.client.info.versions
            record_act(AuditEvent(actor=actor(), action=f"exact.{verdict}", versions=versions))
        return document

    raise typer.Exit(print_result(asyncio.run(checked()), as_json=as_json))


def print_result(document: Mapping[str, Any], *, as_json: bool) -> int:
    """Print what a check found and return the exit status: 1 if any token differs."""
    print_reply(document, _COLUMNS, as_json=as_json)
    if not as_json:
        different = f"different on {document['num_different']} requests"
        stdout().print("identical on every request" if document["identical"] else different)
    return OK if document["identical"] else FAILED


async def check(
    prompts: Sequence[Prompt],
    params: SamplingParams,  # of the sampled requests; the seed of the first one, and each further prompt adds 1
    concurrency: int,
    client: EngineClient,
    tokenizer: ChatTokenizer,
) -> dict[str, Any]:
    """Run the three runs of every case and compare them; raises the error of a request that fails.

    Cases are greedy and sampled in turn, so that a mixed batch holds both.
    """
    cases = list[Case]()
    for i, prompt in enumerate(encode_prompts(prompts, tokenizer)):
        cases.append(Case(prompt, replace(params, temperature=0.0, seed=0)))
        cases.append(Case(prompt, replace(params, seed=params.seed + i)))
    runs: dict[str, tuple[str, int, Callable[[int], bool]]] = {  # what is said, how many at once, who speculates
        "plain": ("plain", 1, lambda i: False),
        "alone": ("speculated one at a time", 1, lambda i: True),
        "mixed": (f"{concurrency} at a time", concurrency, lambda i: i % PLAIN_SHARE != PLAIN_SHARE - 1),
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
    speculated = [case.answers[run] for case in cases for run in ("alone", "mixed")]
    num_different = sum(bool(case.differences) for case in cases)
    return {
        "identical": not num_different,
        "num_requests": len(cases),
        "num_different": num_different,
        "num_tokens": sum(len(answer.token_ids) for answer in speculated),
        "num_draft_tokens": sum(answer.stats.num_draft_tokens for answer in speculated),
        "num_accepted": sum(answer.stats.num_accepted for answer in speculated),
        **{name: getattr(client.info, name) for name in ("exactness", "exactness_reason", "model", "forward")},
        **{name: getattr(params, name) for name in ("max_tokens", "temperature", "seed")},
        "concurrency": concurrency,
        "requests": [case.described(tokenizer) for case in cases],
    }


def difference(run: str, plain: Sequence[int], answer: Sequence[int]) -> FirstDifference | None:
    """Return the first difference of an answer from the plain one, not classified; None if they are equal."""
    pairs = enumerate(zip_longest(plain, answer))
    return next((FirstDifference(run, at, token, other) for at, (token, other) in pairs if token != other), None)


async def classified(
    client: EngineClient, request: GenerateRequest, answer: tuple[int, ...], first: FirstDifference
) -> FirstDifference:
    """Return the difference with the kind that a replay of the answer gives it, by the logits of its own pass."""
    if first.plain is not None and first.other is not None:
        again = (await replay(client, Recording(request, (answer,)), request.request_id)).differences.get(0)
        if again is not None and again.position == first.position:
            return replace(first, kind=again.kind, margin=again.margin)
    return first
