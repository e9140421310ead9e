"""The coder model: whatever proposes, and after 15,000 tokens too, its answers are those of plain decoding."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from prolepsis.core.ask import TimedAnswer, ask
from prolepsis.core.client_draft import ClientDraft
from prolepsis.core.config import EngineConfig, RemoteProposerTerms
from prolepsis.core.events import Tokens
from prolepsis.core.handshake import SharedKey
from prolepsis.core.messages import OfferDraft
from prolepsis.core.requests import GenerateRequest, GrammarSpec, SamplingParams, SpeculationChoice
from prolepsis.engine.build import assemble
from prolepsis.engine.models.load import LoadedModel
from prolepsis.engine.thread import ThreadEngineClient
from prolepsis.remote.propose.served import served_model
from prolepsis.remote.propose.server import ProposeServer
from tests.coder_model import CONFIG, SLOW_S, needs_coder
from tests.remote.propose.servers import serving

pytestmark = [needs_coder, pytest.mark.timeout(SLOW_S)]
NUM_TOKENS = 40
CODE = "def total(values):\n    result = 0\n    for value in values:\n        result += value\n    return result\n"
QUESTIONS = {
    "edit": f"Rename `result` to `sum_of_values`. Answer with the code only.\n```python\n{CODE}```",
    "write": "Write a Python function that returns the n-th Fibonacci number.",
}
KINDS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS),
    "sampled": SamplingParams(
        temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05, seed=4, max_tokens=NUM_TOKENS
    ),
}
FREE = ("suffix", "prompt_lookup", "prediction", "client")
PROPOSERS = (*FREE, "draft_model", "early_exit", "remote")
ALL = "all of them"
LAYERS = 26
"""Of 28: an exit that was not trained guesses right behind late layers only."""
FIELDS = GrammarSpec(
    "regex", r'\{"language": "[a-z]{1,9}", "is_recursive": (true|false), "number_of_lines": [0-9]{1,2}\}'
)
LEAST_LONG = 15_000
"""Tokens of the long prompt."""


def requests_of(loaded: LoadedModel) -> dict[str, GenerateRequest]:
    """Return each question, free and in a grammar, greedy and sampled."""
    found = {}
    for name, question in QUESTIONS.items():
        prompt = tuple(loaded.tokenizer.apply_chat_template([{"role": "user", "content": question}]))
        for kind, params in KINDS.items():
            found[f"{name} {kind}"] = GenerateRequest(f"{name} {kind}", prompt, params)
            constrained = GenerateRequest(f"{name} {kind} fields", prompt, params, grammar=FIELDS)
            found[constrained.request_id] = constrained
    return found


def drafted_by(proposer: str, source: GenerateRequest, plain: Sequence[int]) -> GenerateRequest:
    """Return the request for which one proposer drafts; predicted is the plain answer with an error every 9 tokens."""
    predicted = tuple(token if i % 9 else token + 1 for i, token in enumerate(plain, 1))
    return replace(
        source,
        request_id=f"{source.request_id} {proposer}",
        cache_salt=proposer,
        prediction_token_ids=predicted,
        speculation=SpeculationChoice("always", proposers=None if proposer == ALL else (proposer,)),
    )


def offering(client: ThreadEngineClient, request_id: str, plain: Sequence[int]) -> Callable[[Tokens], None]:
    """Offer, whenever tokens come, the next of the plain answer and a wrong one behind them."""
    num_seen = 0

    def show(event: Tokens) -> None:
        nonlocal num_seen
        num_seen += len(event.token_ids)
        if right := tuple(plain[num_seen : num_seen + 8]):
            client.send(OfferDraft(request_id, ClientDraft(num_seen, (*right[:-1], right[-1] + 1))))

    return show


@contextmanager
def engine_config(folder: Path) -> Iterator[EngineConfig]:
    """Give the settings of an engine that has every proposer, while a propose server runs."""
    (key := folder / "key").write_text("k" * 32)
    server = ProposeServer(served_model(CONFIG, "prompt_lookup"), SharedKey.read(key, "key"))
    with serving(server) as port:
        yield CONFIG.model_copy(
            update={
                "proposers": ("grammar", *PROPOSERS),
                "draft_model": CONFIG.model,
                "early_exit_layer": LAYERS,
                "remote_proposer": RemoteProposerTerms(address=f"127.0.0.1:{port}", key=key, wait_ms=100.0),
            }
        )


async def run(loaded: LoadedModel, config: EngineConfig) -> dict[str, dict[str, TimedAnswer]]:
    """Return the answers to all requests, by what drafted for them; "plain": nothing did."""
    client = ThreadEngineClient(assemble(config, loaded, draft=loaded))
    assert client.info.exactness == "strict", client.info.exactness_reason
    sources = requests_of(loaded)
    off = SpeculationChoice("off")
    try:
        plain = await asyncio.gather(*(ask(client, replace(one, speculation=off)) for one in sources.values()))
        found = {"plain": dict(zip(sources, plain, strict=True))}
        for proposer in ("grammar", *PROPOSERS, ALL):
            asked = [drafted_by(proposer, sources[name], found["plain"][name].token_ids) for name in sources]
            shows = [offering(client, one.request_id, a.token_ids) for one, a in zip(asked, plain, strict=True)]
            answers = await asyncio.gather(*(ask(client, *pair) for pair in zip(asked, shows, strict=True)))
            found[proposer] = dict(zip(sources, answers, strict=True))
        assert not any(client.engine.speculation.proposers.failures.values())
        return found
    finally:
        await client.close()


@pytest.fixture(scope="module")
def answers(coder: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, TimedAnswer]]:
    with engine_config(tmp_path_factory.mktemp("remote")) as config:
        return asyncio.run(run(coder, config))


@pytest.mark.parametrize("proposer", ["grammar", *PROPOSERS, ALL])
def test_drafts_change_no_token(proposer: str, answers: Mapping[str, Mapping[str, TimedAnswer]]) -> None:
    for name, plain in answers["plain"].items():
        assert answers[proposer][name].token_ids == plain.token_ids, name
    stats = [answer.stats for answer in answers[proposer].values()]
    assert sum(one.num_accepted for one in stats) > 0
    if proposer != ALL:
        assert {name for one in stats for name in one.proposers} == {proposer}


def test_a_question_about_15000_tokens_is_answered_the_same_with_drafts(coder: LoadedModel) -> None:
    """The forward has to find one line among all the others, behind chunks of 512 tokens."""
    lines = [f"def function_{i}(a, b):\n    return a * {i} + b\n" for i in range(1000)]
    lines[321] = "def needle(a, b):\n    return a ** 7 - 13 * b\n"
    code = "\n".join(lines)
    question = f"{code}\nRepeat the function `needle`, nothing else."
    prompt = tuple(coder.tokenizer.apply_chat_template([{"role": "user", "content": question}]))[-16_000:]
    assert len(prompt) > LEAST_LONG

    async def both() -> tuple[TimedAnswer, TimedAnswer]:
        config = CONFIG.model_copy(update={"kv_memory": "512MiB", "max_model_len": 16_384})
        client = ThreadEngineClient(assemble(config, coder))
        try:
            source = GenerateRequest("plain", prompt, KINDS["greedy"], speculation=SpeculationChoice("off"))
            drafted = replace(source, request_id="on", speculation=SpeculationChoice("always"))
            return await ask(client, source), await ask(client, drafted)
        finally:
            await client.close()

    plain, drafted = asyncio.run(both())
    assert "return a ** 7 - 13 * b" in coder.tokenizer.decode(plain.token_ids)
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.num_accepted > 0
    assert drafted.stats.num_cached_tokens > LEAST_LONG - 64, "the prompt is not read twice"
