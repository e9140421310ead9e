"""Puts the real vLLM in the fake engine's place:
`python -m pytest -p tests.adapters.vllm.openai_contract tests/server/openai`.

Each token is scheduled, computed, drafted, verified and sampled as when serving. A bias on the logits lets the tiny
random model say what a test's fake engine says.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from prolepsis.adapters.vllm.build import VllmEngineClient, assemble
from prolepsis.adapters.vllm.data_plane import ComputedPass
from prolepsis.adapters.vllm.v0_32 import VllmDataPlane, VllmSettings
from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import ProlepsisError
from prolepsis.core.events import Aborted, Event, Failed, Terminal, Tokens
from prolepsis.core.messages import Abort, ApplyPlan, Control
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import RequestStats
from prolepsis.engine.text.grammar.grammars import Grammars
from tests.adapters.vllm.fake_only import FAKE_ONLY
from tests.engine.models.tiny import save_tiny
from tests.fake_client import INFO
from tests.server import fakes
from tests.server.fakes import END, ByteTokenizer

LONGEST = 1 << 16
"""Most tokens of a request in these tests."""
VOCAB = 320
"""Some of the tests have tokenizers with more than bytes."""
DEPTH = 3
"""Draft tokens of every pass that has any: by time, as when serving, chunks would be other ones each time."""
_BIAS = 60.0
"""More than temperatures and penalties take away, less than a grammar does."""


class SpokenPlane(VllmDataPlane):
    """A `DataPlane`: vLLM's, whose model prefers what it was told to say."""

    def __init__(self, settings: VllmSettings) -> None:
        super().__init__(settings)
        self.told: dict[str, tuple[int, Sequence[int]]] = {}
        """Of each request the length of the prompt, and what follows it."""

    def compute(self, drafts: Mapping[str, Sequence[int]]) -> ComputedPass:
        computed = super().compute(drafts)
        first = 0
        for row in computed.rows:
            num_prompt, text = self.told[row.key.rpartition("/")[0]]
            begin = row.start + row.num_tokens - num_prompt
            for position in range(begin, begin + 1 + row.num_draft_tokens if row.samples_next else begin):
                computed.logits[first, text[position] if position < len(text) else END] += _BIAS
                first += 1
        return computed


class Voice:
    """vLLM behind our client, in an event loop of its own: those of the tests come and go."""

    def __init__(self, folder: Path) -> None:
        save_tiny(folder, "llama", {"vocab_size": VOCAB, "head_dim": 32, "max_position_embeddings": LONGEST})
        config = EngineConfig(max_requests=16, num_speculative_tokens=DEPTH, propose_limit_ms=0, stuck_after_s=0)
        settings = VllmSettings(
            folder,
            max_model_len=LONGEST,
            max_sequences=config.max_requests,
            max_step_tokens=config.max_step_tokens,
            num_speculative_tokens=config.num_speculative_tokens,
            kv_bytes=128 << 20,
            prefix_cache=False,  # a test's second request would have other figures than its first
            more={},
        )
        self._plane = SpokenPlane(settings)
        info = replace(INFO, vocab_size=VOCAB, max_model_len=LONGEST)
        grammars = Grammars(tokenizer_json, VOCAB, (END,))
        engine = assemble(config, self._plane, info, (END,), tokenizer=ByteTokenizer(), grammars=grammars)
        self._client = VllmEngineClient(engine, self._plane)
        self._client.send(ApplyPlan(SpecPlan(num_speculative_tokens=DEPTH, fixed_depth=DEPTH)))
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    async def generate(self, request: GenerateRequest, text: Sequence[int]) -> AsyncGenerator[Event, None]:
        """Yield the events of a request whose samples all say `text`."""
        loop, events = asyncio.get_running_loop(), asyncio.Queue[Event | Exception]()

        def put(event: Event | Exception) -> None:
            with suppress(RuntimeError):  # the test and its loop have ended
                loop.call_soon_threadsafe(events.put_nowait, event)

        self._plane.told[request.request_id] = len(request.prompt_token_ids), text
        asked = asyncio.run_coroutine_threadsafe(self._ask(request, put), self._loop)
        try:
            event: Event | None = None
            while not isinstance(event, Terminal):
                found = await events.get()
                if isinstance(found, Exception):
                    raise found
                event = found
                yield event
        finally:
            asked.cancel()

    def abort(self, request_id: str) -> None:
        self._client.send(Abort(request_id))

    async def _ask(self, request: GenerateRequest, put: Callable[[Event | Exception], None]) -> None:
        try:
            async with aclosing(self._client.generate(request)) as events:
                async for event in events:
                    put(event)
        except Exception as error:  # the test is to see it
            put(error)


class SpokenByVllm(fakes.FakeEngine):
    """Has vLLM say what a fake engine would; holds and fails after as many tokens as that one."""

    voice: Voice

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        self.requests.append(request)
        self.asked.set()
        if self.error is not None and self.fail_after is None:
            raise self.error
        abort = self._aborts[request.request_id] = asyncio.Event()
        inner = replace(request, request_id=self._inner(request.request_id))
        event: Event | None = None
        try:
            async with aclosing(self.voice.generate(inner, [*self.text.encode(), END])) as events:
                async for found in events:
                    event = replace(await self._acted(found, inner, abort), request_id=request.request_id)
                    yield event
                    if isinstance(event, Terminal):
                        return
        finally:
            if not isinstance(event, Terminal) and request.request_id not in self.aborted:
                self.aborted.append(request.request_id)
            self._aborts.pop(request.request_id, None)

    def send(self, control: Control) -> None:
        super().send(control)
        if isinstance(control, Abort):
            self.voice.abort(self._inner(control.request_id))

    async def close(self) -> None:
        for request_id in list(self._aborts):
            self.voice.abort(self._inner(request_id))
        await super().close()

    def _inner(self, request_id: str) -> str:
        """Return a request's name in vLLM, where those of all engines of the tests run."""
        return f"{id(self)} {request_id}"

    async def _acted(self, event: Event, request: GenerateRequest, abort: asyncio.Event) -> Event:
        """Return the event, or what the test wants in its place."""
        if not isinstance(event, Tokens):
            return event
        await asyncio.sleep(self.delay_s)
        step, stats = event.position // self.step, RequestStats(len(request.prompt_token_ids), 0, event.position)
        if self.fail_after is not None and step >= self.fail_after:
            assert isinstance(self.error, ProlepsisError), "a test says how it fails"
            return Failed(event.request_id, self.error, stats)
        if self.hold_after is not None and step >= self.hold_after:
            self.held.set()
            await abort.wait()
            return Aborted(event.request_id, stats)
        return event


def tokenizer_json() -> str:
    """Return the tokenizer of bytes as grammars read it: token i is byte i."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    shown = {ord(letter): letter for letter in letters if ord(letter) < END}
    others = iter(
        letter for letter in letters if ord(letter) >= END
    )  # bytes without a letter have one of these, in order
    vocab = {shown.get(byte) or next(others): byte for byte in range(END)}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", normalized=False, special=True)])
    assert tokenizer.token_to_id("<end>") == END
    return tokenizer.to_str()


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Come before what imports the fake engine."""
    SpokenByVllm.voice = Voice(Path(mkdtemp(prefix="openai-contract-")))
    fakes.FakeEngine = SpokenByVllm  # type: ignore[misc]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = item.nodeid.rpartition("/")[2].partition("[")[0]
        if name in FAKE_ONLY:
            item.add_marker(pytest.mark.xfail(reason=FAKE_ONLY[name], strict=True))
