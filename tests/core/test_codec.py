"""All that travels between processes: it arrives as it was sent, and whatever else arrives is a `ProtocolError`."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.core import errors
from prolepsis.core.client_draft import ClientDraft
from prolepsis.core.codec import Codec, FrameReader, ProtocolError
from prolepsis.core.config import EngineConfig, RemoteProposerTerms
from prolepsis.core.continuation import Continuation, Continued
from prolepsis.core.errors import (
    ContextTooLong,
    EngineDead,
    GrammarFailed,
    NotContinued,
    ProlepsisError,
    UserError,
)
from prolepsis.core.events import Aborted, Difference, Event, Finished, Proposed, TokenLogprobs, Tokens
from prolepsis.core.exact_group import ExactGroup
from prolepsis.core.messages import Abort, ApplyPlan, OfferDraft, StopRun
from prolepsis.core.plan import DisabledProposer, SpecPlan
from prolepsis.core.recorded_draft import RecordedDraft
from prolepsis.core.requests import GenerateRequest, GrammarSpec, SamplingParams, SpeculationChoice
from prolepsis.core.rounds import Round
from prolepsis.core.stats import DeviceSeconds, EffectiveMode, JudgedDraft, ProposerCounts, RequestStats
from prolepsis.core.tagged import Tagged

GROUP = ExactGroup(weights="w", tokenizer="t", forward="f", exactness="strict", machine="m")
PARAMS = SamplingParams(0.5, 40, 0.9, logit_bias=((7, -1.5),), stop=("\n\n", "é"), stop_token_ids=(3,), seed=-(2**63))
REQUEST = GenerateRequest(
    "r",
    (1, 2, 2**31),
    PARAMS,
    deadline_s=3.0,
    kill_scopes=frozenset({"tenant:a", "class:chat"}),
    grammar=GrammarSpec("regex", "a+"),
    records_drafts=True,
    speculation=SpeculationChoice(proposers=("suffix",), num_speculative_tokens=3),
    emitted=((1,), ()),
    continue_from=Continuation(emitted=((5, 6),), group=GROUP, outside_group="continue"),
)
STATS = RequestStats(
    not_exact=("weights unknown",),
    continued=[Continued(loss="engine_dead", num_tokens=4, pause_s=0.25)],
    proposers={"suffix": ProposerCounts(1, 3, 2, [[1, 1], [1, 1], [1, 0]], num_delivered=2)},
    rounds=[Round(0.1, 0.2, 0.0, 0.1, 0.0, 0, 4, "suffix", "", 3, 3, 2, 3)],
    drafts={"suffix": [RecordedDraft(0, 3, 4, (0, 1), (-1, 0), (0.5, 0.25), (2, 2), (0,)), RecordedDraft(0, 5, 4)]},
    judged={"head": [JudgedDraft(True, None), JudgedDraft(False, 0.5)]},
    heads={"draft_head": None, "candidate_head": "a@2"},
    plain_steps={"no_draft": 3},
    lost={"stop_string": 1},
    first_token_s=float("inf"),
    device=DeviceSeconds(prefill=1.0),
    mode=EffectiveMode("on", "speculating", 3),
)
TOKENS = Tokens(
    "r",
    1,
    (4, 5),
    position=7,
    logprobs=(TokenLogprobs(-0.5, ((4, -0.5), (9, -1.0))), TokenLogprobs(-0.25)),
    finish_reason="stop",
    stop_reason=3,
    proposed=Proposed((4, 8), (-1, 0), "suffix"),
    difference=Difference(7, None, 3, "near_tie", margin=0.1),
    accepted_by=("suffix",),
    prompt_logprobs=(TokenLogprobs(-3.0, ((1, -0.5),), 7),),
)
PLAN = SpecPlan(
    proposers=("suffix",),
    stopped=frozenset({"run"}),
    disabled=(DisabledProposer("suffix", "chat", tenants=frozenset({"a"})),),
)


class Generate(Tagged, frozen=True):
    stream: int
    request: GenerateRequest


class Refused(Tagged, frozen=True):
    stream: int
    error: ProlepsisError | None = None


class Start(Tagged, frozen=True):
    config: EngineConfig


class Bounded(Tagged, frozen=True):
    tokens: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0, lt=100)], ...], msgspec.Meta(max_length=3)]


Message = Generate | Refused | Start | Bounded | Abort | OfferDraft | ApplyPlan | StopRun | Event
CODEC = Codec[Message](Message)
MESSAGES: tuple[Message, ...] = (
    Generate(3, REQUEST),
    Generate(0, GenerateRequest("", (), SamplingParams())),
    Refused(3),
    Start(EngineConfig(model="some", kv_memory="1GiB", max_model_len=99, model_dir=Path("/models"))),
    Start(EngineConfig(remote_proposer=RemoteProposerTerms(address="redis://:secret@h?stream=s", key=Path("/key")))),
    Bounded((1, 99)),
    Abort("r", "shutdown"),
    OfferDraft("r", ClientDraft(4, (1, 2))),
    ApplyPlan(PLAN),
    ApplyPlan(SpecPlan()),
    StopRun("run"),
    TOKENS,
    Tokens("r", 0, (4,), position=0, stop_reason="\n\n"),
    Finished("r", STATS),
    Aborted("r", RequestStats(), "shutdown"),
)


def frames(data: bytes, most: int = 1 << 20, size: int = 1 << 20) -> Iterator[bytes]:
    reader = FrameReader(most)
    for i in range(0, len(data), size):
        yield from reader.feed(data[i : i + size])


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_arrives_as_it_was_sent(message: Message) -> None:
    [body] = frames(CODEC.encode(message))
    assert CODEC.decode(body) == message


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_frames_arrive_however_they_are_cut(size: int) -> None:
    assert [CODEC.decode(body) for body in frames(b"".join(map(CODEC.encode, MESSAGES)), size=size)] == [*MESSAGES]


@given(
    st.text(st.characters(exclude_categories=["Cs"])), st.lists(st.integers(0, 2**32)), st.floats(), st.integers(0, 9)
)
def test_values_arrive_as_they_were_sent(text: str, tokens: list[int], number: float, position: int) -> None:
    sent = Tokens(text, position, tuple(tokens), position=position, logprobs=(TokenLogprobs(number),))
    assert repr(CODEC.decode(CODEC.encode_body(sent))) == repr(sent)


ERRORS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ProlepsisError)]


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_arrives_as_its_class(kind: type[ProlepsisError]) -> None:
    found = returned(kind("what\ud800 went wrong"))
    assert type(found) is kind
    assert str(found) == "what? went wrong"


def test_an_error_arrives_with_what_it_says() -> None:
    refused = returned(ContextTooLong.of(9, "prompt 10", param="messages"))
    assert isinstance(refused, UserError)
    assert refused.param == "messages"
    left = returned(NotContinued("no", reason="other_group"))
    assert isinstance(left, NotContinued)
    assert left.reason == "other_group"


def test_an_error_of_a_class_of_its_own_arrives_as_the_nearest_of_ours() -> None:
    class Special(GrammarFailed):
        pass

    assert type(returned(Special("x"))) is GrammarFailed


class Bare(UserError):
    """Sets none of the fields of its class."""

    def __init__(self, message: str) -> None:
        Exception.__init__(self, message)


def test_an_error_without_the_fields_of_its_class_arrives() -> None:
    error = returned(Bare("bare"))
    assert isinstance(error, UserError)
    assert (type(error), str(error), error.param) == (UserError, "bare", None)


def test_an_error_of_another_kind_than_declared_is_refused() -> None:
    class Dead(Tagged, frozen=True):
        error: EngineDead

    body = Codec[Refused](Refused).encode_body(Refused(0, ProlepsisError("x"))).replace(b"Refused", b"Dead\0\0\0")
    with pytest.raises(ProtocolError):
        Codec[Dead](Dead).decode(body)


def returned(error: ProlepsisError) -> ProlepsisError | None:
    found = CODEC.decode(CODEC.encode_body(Refused(0, error)))
    assert isinstance(found, Refused)
    return found.error


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_an_error(body: bytes) -> None:
    with suppress(ProtocolError):
        assert isinstance(CODEC.decode(body), Message)


@given(st.sampled_from(MESSAGES), st.data())
def test_a_damaged_message_is_a_message_or_an_error(message: Message, data: st.DataObject) -> None:
    body = bytearray(CODEC.encode_body(message))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ProtocolError):
        assert isinstance(CODEC.decode(bytes(body)), Message)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"\x81\xa4type\xa7Nothing", "Nothing.*allowed: Generate, Refused"),
        (msgspec.msgpack.encode({"type": "Abort", "request_id": 3}), "Expected `str`, got `int`.*request_id"),
        (msgspec.msgpack.encode({"type": "Bounded", "tokens": [1, 2, 3, 4]}), "length <= 3"),
        (msgspec.msgpack.encode({"type": "Bounded", "tokens": [100]}), "<= 99"),
        (msgspec.msgpack.encode({"type": "Refused", "stream": 0, "error": {"type": "SystemExit"}}), "SystemExit"),
        (msgspec.msgpack.encode({"type": "Start", "config": {"model": 3}}), "config"),
        (b"\x82\xa4type\xa5Abort\xaarequest_id\xa1\xff", "utf-8"),
        (b"\xdd\xff\xff\xff\xff", "array"),
        (b"\x91" * 100_000, "100000 bytes"),
        (
            msgspec.msgpack.encode({"type": "Abort", "request_id": "a", "other": None})[:-1] + b"\x91" * 9999,
            "recursion",
        ),
        (b"", "0 bytes"),
    ],
)
def test_an_error_names_what_came_and_what_is_allowed(body: bytes, named: str) -> None:
    with pytest.raises(ProtocolError, match=named):
        CODEC.decode(body)


@pytest.mark.parametrize("message", [Abort("\ud800"), Tokens("r", 0, (2**64,), position=0), StopRun(object())])  # type: ignore[arg-type]
def test_what_cannot_travel_is_named_before_it_is_sent(message: Message) -> None:
    with pytest.raises(ProtocolError, match=f"{type(message).__name__} cannot be sent"):
        CODEC.encode(message)


def test_a_long_body_is_refused_before_it_has_arrived() -> None:
    with pytest.raises(ProtocolError, match="513 bytes; allowed: 512"):
        list(frames((513).to_bytes(4), most=512))
