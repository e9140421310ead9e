"""A real engine over the table model, behind the real application and a real uvicorn: everything but the tensors."""

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

import uvicorn

from prolepsis.core.config import ServerConfig
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.events import Event, Terminal
from prolepsis.core.messages import Message, Submit
from prolepsis.core.plan import SpecPlan
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.engine.drafting.proposers.prompt_lookup import PromptLookupProposer
from prolepsis.engine.drafting.proposers.suffix import SuffixProposer
from prolepsis.engine.step import Engine, EngineParts
from prolepsis.engine.text.answer_formats.formats import AnswerFormats
from prolepsis.engine.thread import ThreadEngineClient
from prolepsis.server.admission.controller import AdmissionController
from prolepsis.server.front.keys import Keys
from prolepsis.server.output.pipeline import LoadedPolicy
from tests.fakes import EOS, VOCAB, EngineSetup, Letters, build_as
from tests.server.application import build
from tests.server_thread import running
from tests.waiting import wait_for


class LetterTokenizer:
    """Token i is the i-th letter, 0 ends a text; what is no letter becomes one."""

    formats = AnswerFormats()
    fill_marks = None
    special_tokens: ClassVar = {"eos_token": "a"}
    chat_template = "contents, one after the other"

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(c) - ord("a") if "a" < c < chr(ord("a") + VOCAB) else 1 + ord(c) % (VOCAB - 1) for c in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return Letters().decode([token for token in token_ids if token != EOS or not skip_special_tokens])

    def token_bytes(self, token_id: int) -> bytes:
        return self.decode([token_id], skip_special_tokens=False).encode()

    def shows_role(self, role: str) -> bool:
        return False

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> list[int]:
        return self.encode("".join(str(message["content"]) for message in messages))


class CountingEngine(Engine):
    """Remembers what was submitted; once `dies` is set, its thread ends after the next step."""

    def __init__(self, parts: EngineParts, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(parts, clock)
        self.submitted: list[str] = []
        self.dies = False

    def send(self, message: Message | None) -> None:
        if isinstance(message, Submit):
            self.submitted.append(message.request.request_id)
        super().send(message)

    def step(self) -> list[Event]:
        events = super().step()
        if self.dies:
            raise SystemExit("out of step")
        return events


class CountingClient(ThreadEngineClient):
    """Remembers what was submitted and how often each request was said to have ended."""

    def __init__(self, engine: CountingEngine) -> None:
        super().__init__(engine)
        self.submitted = engine.submitted
        self.ended: Counter[str] = Counter()

    def _hand_over(self, events: list[Event]) -> None:
        self.ended.update(event.request_id for event in events if isinstance(event, Terminal))
        super()._hand_over(events)


@dataclass
class TableServer:
    """One server under test, not yet serving."""

    config: ServerConfig = field(default_factory=lambda: ServerConfig(breaker="off"))
    """The table model's text is noise: a breaker would leave out the proposers that draft it from earlier text."""
    setup: EngineSetup = field(default_factory=lambda: EngineSetup(max_model_len=512, num_pages=256))
    keys: Keys | None = None
    base_plan: SpecPlan | None = None
    tokenizer: LetterTokenizer = field(default_factory=LetterTokenizer)
    output: Sequence[LoadedPolicy] = ()
    url: str = ""
    port: int = 0

    def __post_init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop
        """The server's, in its own thread."""
        self.metrics = Metrics()
        self.setup.observer = self.metrics
        self.setup.proposers = self.setup.proposers or (SuffixProposer(1 << 20), PromptLookupProposer())
        self.engine = build_as(CountingEngine, self.setup)
        self.client = CountingClient(self.engine)
        self.app = build(
            self.config,
            self.served(),
            self.tokenizer,
            self.metrics,
            keys=self.keys,
            base_plan=self.base_plan,
            output=self.output,
        )

    def served(self) -> EngineClient:
        """Return the client that the application asks."""
        return self.client

    @property
    def gate(self) -> AdmissionController:
        gate: AdmissionController = self.app.state.admission
        return gate

    def sample(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"prolepsis_{name}", labels) or 0.0

    def check_ended_once(self) -> None:
        """Every request that reached the engine ended once, and nothing is left of any."""
        wait_for(lambda: sum(self.client.ended.values()) >= len(self.client.submitted))
        wait_for(lambda: self.gate.num_inside == 0 and (self.engine.dead is not None or not self.engine.has_work))
        assert len(set(self.client.submitted)) == len(self.client.submitted)
        assert self.client.ended == Counter(self.client.submitted)
        assert (self.gate.num_waiting, self.gate._taken) == (0, 0)
        if self.engine.dead is None:
            self.engine.scheduler.check()
            assert self.engine.scheduler.kv_usage == 0


@contextmanager
def serving(tested: TableServer) -> Iterator[TableServer]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    tested.port = listener.getsockname()[1]
    tested.url = f"http://127.0.0.1:{tested.port}"
    with running(uvicorn.Config(tested.app, log_config=None, lifespan="on"), listener) as tested.loop:
        yield tested
