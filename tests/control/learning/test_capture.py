"""What is kept of requests to learn from: whose, which part of them, and what it may take."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from prolepsis.control.learning.capture import CaptureFeature, redacted_example
from prolepsis.control.policy.learning_terms import LearningTerms
from prolepsis.control.store.examples import ExampleItem, ExampleTable
from prolepsis.control.store.migrate import migrated_in_memory
from prolepsis.control.store.queue import QueueItem
from prolepsis.control.store.store import Store, unrecorded
from prolepsis.control.store.writer import ItemWriter
from prolepsis.control.web.context import Context
from prolepsis.core.audit_event import discard
from prolepsis.core.config import ServerConfig
from prolepsis.core.continuation import Continued
from prolepsis.core.ended import Keep, PromptEnded, RequestAbout, RequestEnded
from prolepsis.core.events import Tokens
from prolepsis.core.learning import Example
from prolepsis.core.requests import GenerateRequest, GrammarSpec, SamplingParams
from prolepsis.core.stats import EffectiveMode, RequestStats
from prolepsis.core.telemetry.metrics import Metrics
from tests.clock import Clock
from tests.fake_client import INFO
from tests.server.fakes import ByteTokenizer, FakeEngine

PROMPT, ANSWER = "Sum up the file.", "It starts the engine and serves."
TERMS = LearningTerms(tenants=("acme",), max_prompt_tokens=100)
ABOUT = RequestAbout(
    answer_id="a",
    tenant="acme",
    key_id="k",
    tier="standard",
    route="/v1/completions",
    model="tiny",
    policy_rule="code",
    learns="code",
)
STATS = RequestStats(num_output_tokens=32, num_steps=16, mode=EffectiveMode("on", "speculating", 1))


class Queue(ItemWriter):
    """A writer that only takes items, as many as it has room for."""

    is_on = True

    def __init__(self, room: int = 100) -> None:
        self.items: list[ExampleItem] = []
        self.room = room

    def offer(self, item: QueueItem) -> bool:
        assert isinstance(item, ExampleItem)
        is_taken = len(self.items) < self.room
        self.items += [item] * is_taken
        return is_taken

    def made(self) -> list[Example]:
        """Return the examples of all items, as the writer's thread makes them."""
        made = [item.make() for item in self.items]
        self.items = []
        return [example for example in made if example is not None]


class Capture:
    def __init__(
        self,
        store: Store | None = None,
        blocks: Mapping[str, LearningTerms] | None = None,
        *,
        drawn: float = 0.0,
        costs_s: float = 0.0,
        most: int = 1000,
    ) -> None:
        """`costs_s`: thread time that reading an example takes."""
        self.queue, self.metrics, self.clock, self.processor = Queue(), Metrics(), Clock(), Clock(0.0)
        self.database = migrated_in_memory()
        context = Context(
            config=ServerConfig(),
            client=FakeEngine(),
            metrics=self.metrics,
            store=store or Store(self.database, self.queue),
            emit=discard,
            monotonic=self.clock,
            wall=self.clock,
        )
        tokenizer = ByteTokenizer()
        self.blocks = {"code": TERMS} if blocks is None else blocks

        def decode(tokens: Any) -> str:
            self.processor.now += costs_s
            return tokenizer.decode(tokens, skip_special_tokens=False)

        self.feature = CaptureFeature(
            context,
            tokenizer.encode,
            decode,
            lambda: self.blocks,
            draw=lambda: drawn,
            thread_time=self.processor,
            max_pending_tokens=most,
        )

    def end(self, ended: RequestEnded) -> None:
        self.feature.on_request_end(ended)

    def count(self, outcome: str, rule: str = "code") -> float:
        labels = {"rule": rule, "outcome": outcome}
        return self.metrics.registry.get_sample_value("prolepsis_learning_examples_total", labels) or 0.0


def ended(prompt: str = PROMPT, answer: str = ANSWER, about: RequestAbout = ABOUT, **changes: Any) -> RequestEnded:
    """Return a request; `changes` are of its prompt, its `params`, its `grammar` and its `request_id`."""
    given = {name: changes.pop(name) for name in ("params", "grammar") if name in changes}
    request = GenerateRequest(
        changes.pop("request_id", "cmpl-1"),
        tuple(prompt.encode()),
        given.get("params", SamplingParams(temperature=0.0)),
        grammar=given.get("grammar"),
        traffic_class="completions/standard/plain/short/code",
    )
    ids = tuple(answer.encode())
    parts = tuple(Tokens(request.request_id, 0, ids[at : at + 5], at) for at in range(0, len(ids), 5))
    whole = PromptEnded(
        request=request,
        end="finished",
        error=None,
        stats=STATS,
        num_shown_tokens=len(ids),
        answer="complete",
        tokens=parts,
        finish_reasons=("stop",),
        delivery={},
    )
    return RequestEnded(about=about, end="finished", error=None, prompts=(replace(whole, **changes),))


def test_the_tokens_of_prompt_and_answer_are_kept() -> None:
    capture = Capture()
    capture.end(ended())
    [item] = capture.queue.items
    assert (item.tenant, item.began_at, item.is_slow) == ("acme", capture.clock.now, True)
    [example] = capture.queue.made()
    assert example == Example(
        example_id="608a6702b006542946fa7b1cb7b2d45a",
        tokenizer=INFO.tokenizer,
        rule="code",
        tenant="acme",
        traffic_class="completions/standard/plain/short/code",
        at=capture.clock.now,
        prompt=tuple(PROMPT.encode()),
        answer=tuple(ANSWER.encode()),
        greedy=True,
        tokens_a_pass=2.0,
        by_chance=True,
    )
    assert capture.count("kept") == 0, "it is not on disk yet"


def test_what_was_decoded_plainly_shows_nothing_of_drafts() -> None:
    capture = Capture()
    for mode in (EffectiveMode("off", "requested_off", 1), EffectiveMode("shadow", "compared", 1)):
        capture.end(ended(stats=replace(STATS, mode=mode)))
    assert [example.tokens_a_pass for example in capture.queue.made()] == [None, None]


def test_only_of_requests_to_learn_from_is_more_than_figures_kept() -> None:
    capture, request = Capture(), ended().prompts[0].request
    assert capture.feature.keeps(ABOUT, request) == Keep.TOKENS
    assert capture.feature.keeps(replace(ABOUT, learns=""), request) == Keep.FIGURES
    assert Capture(unrecorded()).feature.keeps(ABOUT, request) == Keep.FIGURES


@pytest.mark.parametrize(
    ("about", "blocks"),
    [
        (replace(ABOUT, learns=""), {"code": TERMS}),
        (ABOUT, {}),
        (ABOUT, {"another": TERMS}),
        (ABOUT, {"code": LearningTerms(tenants=("other",))}),
        (replace(ABOUT, tenant=""), {"code": TERMS}),
    ],
    ids=["request", "no_rule", "another_rule", "withdrawn_while_it_ran", "no_tenant"],
)
def test_nothing_is_kept_or_counted_without_consent(about: RequestAbout, blocks: Mapping[str, LearningTerms]) -> None:
    capture = Capture(blocks=blocks)
    capture.end(ended(about=about))
    assert capture.queue.items == []
    assert capture.feature._outcomes.children == {}


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"end": "left", "answer": "complete"}, "unfinished"),
        ({"answer": "cut"}, "unfinished"),
        ({"answer": "unreported", "tokens": ()}, "unfinished"),
        ({"grammar": GrammarSpec("regex", "a*")}, "shaped"),
        ({"params": SamplingParams(presence_penalty=0.5)}, "shaped"),
        ({"params": SamplingParams(repetition_penalty=1.1)}, "shaped"),
        ({"params": SamplingParams(logit_bias=((1, 2.0),))}, "shaped"),
        ({"params": SamplingParams(allowed_token_ids=(1, 2))}, "shaped"),
        ({"params": SamplingParams(min_tokens=5)}, "shaped"),
        ({"params": SamplingParams(ignore_eos=True)}, "shaped"),
        ({"finish_reasons": ("content_filter",)}, "shaped"),
        ({"stats": replace(STATS, continued=[Continued(loss="engine_dead", num_tokens=4, pause_s=0.25)])}, "shaped"),
        ({"prompt": "x" * 101}, "too_long"),
        ({"answer_text": "x" * 15}, "too_short"),
    ],
)
def test_what_a_head_cannot_learn_from_is_counted_and_not_kept(changes: dict[str, Any], outcome: str) -> None:
    capture = Capture()
    texts = {"prompt": changes.pop("prompt", PROMPT)}
    answer = changes.pop("answer_text", ANSWER)
    state = changes.pop("answer", "complete")
    [prompt] = ended(**texts, answer=answer, **changes).prompts
    capture.end(replace(ended(), prompts=(replace(prompt, answer=state),)))
    assert capture.queue.items == []
    assert capture.count(outcome) == 1


def test_an_answer_from_the_cache_is_no_other_one() -> None:
    capture = Capture()
    [prompt] = ended().prompts
    capture.end(replace(ended(), prompts=(replace(prompt, answer="cached"), prompt)))
    assert len(capture.queue.items) == 1
    assert capture.count("unfinished") == 0


def test_requests_that_drafts_fit_are_kept_in_part() -> None:
    capture = Capture(drawn=0.5)
    for steps in (16, 16, 8, 20):
        capture.end(ended(stats=replace(STATS, num_steps=steps)))
    assert [(example.tokens_a_pass, example.by_chance) for example in capture.queue.made()] == [(1.6, False)]
    assert capture.count("not_chosen") == 3


@pytest.mark.parametrize(("drawn", "by_chance"), [(0.249, True), (0.25, False)])
def test_an_example_says_whether_it_was_drawn_whatever_its_drafts_showed(drawn: float, *, by_chance: bool) -> None:
    capture = Capture(drawn=drawn)
    for steps in (8, 20):
        capture.end(ended(stats=replace(STATS, num_steps=steps)))
    assert [example.by_chance for example in capture.queue.made()] == [True, True] if by_chance else [False]


def test_making_examples_takes_half_a_percent_of_the_time() -> None:
    capture, number = Capture(costs_s=0.19), 0
    for _ in range(1000):
        capture.clock.now += 1.0
        capture.end(ended())
        number += len(capture.queue.made())
    assert number == 27, "5 s of 1,000, and the one that goes beyond"
    assert capture.count("busy") == 973


def test_memory_is_bounded_and_given_back() -> None:
    capture = Capture(most=100)
    for _ in range(3):
        capture.end(ended())  # of 48 tokens
    assert (len(capture.queue.items), capture.count("busy")) == (2, 1)
    capture.queue.made()
    capture.end(ended())
    assert (len(capture.queue.items), capture.count("busy")) == (1, 1)


def test_an_example_without_a_place_in_the_queue_gives_its_memory_back() -> None:
    capture = Capture(most=100)
    capture.queue.room = 0
    for _ in range(10):
        capture.end(ended())
    capture.queue.room = 5
    capture.end(ended())
    assert (len(capture.queue.items), capture.count("busy")) == (1, 0)


KEY = "sk-abcdefghijklmnopqrstuvwx0123456789"


def redacted(prompt: str, answer: str) -> Example | None:
    tokenizer = ByteTokenizer()
    example = Example(
        example_id="0" * 32,
        tokenizer="t",
        rule="code",
        tenant="acme",
        traffic_class="c",
        at=0.0,
        prompt=tuple(prompt.encode()),
        answer=tuple(answer.encode()),
        greedy=True,
    )
    return redacted_example(example, tokenizer.encode, tokenizer.decode)


@pytest.mark.parametrize(
    ("prompt", "answer", "kept"),
    [
        (PROMPT, ANSWER, (PROMPT, ANSWER, False)),
        (PROMPT, "Grüße 👋 an alle im Büro.", (PROMPT, "Grüße 👋 an alle im Büro.", False)),
        ("Write to ann@example.org.\n", ANSWER, ("Write to [EMAIL].\n", ANSWER, True)),
        (f"My key is {KEY}. Why?", ANSWER, ("My key is [SECRET]. Why?", ANSWER, True)),
        (PROMPT, f"Größe: sixteen tokens. {KEY} is it", None),
        ("Ask ann@example.org.\n", f"{ANSWER} Write to bob@example.org now.", None),
        (PROMPT, f"It is {KEY}, as I said before.", None),
        (PROMPT, "bob@example.org is the one to ask.", None),
        ("The key is sk-abcdefghijklmn", f"opqrstuvwx0123456789. {ANSWER}", None),
        ("Mail ann@exa", f"mple.org. {ANSWER}", None),
    ],
    ids=[
        "clean",
        "clean_characters",
        "address_in_prompt",
        "key_in_prompt",
        "key_in_answer",
        "address_in_both",
        "key_early",
        "address_first",
        "key_across",
        "address_across",
    ],
)
def test_marks_stand_in_the_prompt_and_an_answer_with_one_is_not_kept(
    prompt: str, answer: str, kept: tuple[str, str, bool] | None
) -> None:
    example = redacted(prompt, answer)
    if example is None:
        assert kept is None
        return
    texts = [bytes(tokens).decode() for tokens in (example.prompt, example.answer)]
    assert (*texts, example.was_redacted) == kept


def test_an_answer_with_a_secret_is_counted() -> None:
    capture = Capture()
    capture.end(ended(answer=f"{KEY} is the key."))
    assert capture.queue.made() == []
    assert capture.count("redacted") == 1


async def test_upkeep_deletes_what_nobody_agrees_to_any_more_where_the_policy_is_known() -> None:
    capture, is_sure = Capture(), [False]
    capture.end(ended())
    with capture.database.write() as connection:
        ExampleItem.write(connection, capture.queue.items)
    capture.blocks = {}
    capture.feature._is_sure = lambda: is_sure[0]
    for number in (1, 0):
        await capture.feature.tick()
        assert len([*ExampleTable(capture.database).read("code")]) == number
        is_sure = [True]
