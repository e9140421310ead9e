"""Batches whose lines a writer writes: what is checked, what is stated, and what the target writes again."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import openai
import pytest

from prolepsis.control.policy.source import PolicyFile
from prolepsis.core.events import TokenLogprobs
from prolepsis.core.facts import position
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import RequestStats
from prolepsis.server.batches.verified import agreement, cost
from prolepsis.server.output.built_in import Patterns
from prolepsis.server.output.pipeline import LoadedPolicy
from tests.server.batches.conftest import Serve, chat_line, ended, jsonl, made, results
from tests.server.fake_writer import FakeWriter, writing
from tests.server.fakes import END, FakeEngine

NUM = 40


class Target(FakeEngine):
    """Says the last word of its prompt; each answer takes a tenth of a second of the device, and a score none of it."""

    def _answer(self, request: GenerateRequest) -> tuple[list[int], bool]:
        if request.params.max_tokens == 0:
            return [], False
        return [*bytes(request.prompt_token_ids).split()[-1], END], True

    def _stats(self, request: GenerateRequest, num_tokens: int) -> RequestStats:
        stats = super()._stats(request, num_tokens)
        stats.device.plain = 0.1 if num_tokens else 0.0
        return stats

    def _prompt_logprobs(self, request: GenerateRequest) -> tuple[TokenLogprobs, ...] | None:
        if request.params.prompt_logprobs is None:
            return None
        scored = request.prompt_token_ids[request.params.scored_from :]
        return tuple(TokenLogprobs(-0.1, (), 1 if bytes([token]).islower() else 9) for token in scored)

    @property
    def num_written(self) -> int:
        return sum(request.params.max_tokens > 0 for request in self.requests)


def word(body: Mapping[str, Any]) -> str:
    return str(body["messages"][0]["content"].split()[-1])


def lines(*words: str, strata: bool = False) -> bytes:
    """Return a file whose lines ask for one of the words, in turn; their strata have the words' names."""
    asked = [words[i % len(words)] for i in range(NUM)]
    more = [{"metadata": {"stratum": name}} if strata else {} for name in asked]
    return jsonl(*(chat_line(f"{i}", f"say {name}", **more[i]) for i, name in enumerate(asked)))


def run(client: openai.OpenAI, content: bytes, **verify: object) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run a batch; return it and its results, in the order of the file."""
    done = ended(client, made(client, content, extra_body={"verify": {"share": 0.5, **verify}}))
    assert done.status == "completed"
    return done.model_dump(), results(client, done.output_file_id)


def sampled(batch_id: str, share: float = 0.5) -> list[bool]:
    return [position(batch_id, f"{i}") < 100 * share for i in range(NUM)]


def text_of(result: Mapping[str, Any]) -> str:
    return str(result["response"]["body"]["choices"][0]["message"]["content"])


@pytest.fixture
def writer() -> Iterable[FakeWriter]:
    """One that says the word that it is asked for, but for `bad`."""
    with writing(say=lambda body: ["worse" if word(body) == "bad" else f"{word(body).title()} "]) as made_writer:
        yield made_writer


def of(writer: FakeWriter) -> dict[str, Any]:
    return {"writers": (f"small={writer.url}",), "max_in_engine": 8}


def test_a_random_share_is_checked_and_every_result_says_who_wrote_it(serve: Serve, writer: FakeWriter) -> None:
    target = Target()
    batch, found = run(serve(target, **of(writer)).openai(), lines("good", "bad"))
    drawn = sampled(batch["id"])
    assert 10 < sum(drawn) < 30
    for i, (result, is_drawn) in enumerate(zip(found, drawn, strict=True)):
        assert (result["verified"], result["writer"]) == (is_drawn, "target" if is_drawn else "small")
        assert result["agrees"] == ((i % 2 == 0) if is_drawn else None)
        of_writer = "Good " if i % 2 == 0 else "worse"
        assert text_of(result) == (("good", "bad")[i % 2] if is_drawn else of_writer)
    assert (len(writer.asked), target.num_written) == (NUM, sum(drawn))
    [stated] = batch["agreement"].values()
    num_agree = sum(drawn[::2])
    assert (stated["lines"], stated["checked"], stated["agree"]) == (NUM, sum(drawn), num_agree)
    assert stated["low"] <= 0.5 <= stated["high"]
    assert batch["cost"] == pytest.approx(
        {
            "writer_s": 0.02 * NUM,
            "target_s": 0.1 * sum(drawn),
            "against_all_s": 0.1 * NUM,
            "ratio": 0.2 + sum(drawn) / NUM,
        }
    )
    assert batch["verify"]["share"] == 0.5
    assert batch["usage"]["output_tokens"] > 0


def test_scores_decide_without_the_targets_text(serve: Serve, writer: FakeWriter) -> None:
    """A capital is not the target's first choice: four of five tokens of `Good ` at least are not enough."""
    target = Target()
    batch, found = run(serve(target, **of(writer)).openai(), lines("good", "bad"), by="score", similarity=0.9)
    for i, (result, is_drawn) in enumerate(zip(found, sampled(batch["id"]), strict=True)):
        assert result["agrees"] == ((i % 2 == 1) if is_drawn else None)
        assert result["writer"] == ("target" if is_drawn and i % 2 == 0 else "small")
    assert target.num_written == sum(result["writer"] == "target" for result in found)


def test_a_stratum_that_agrees_too_seldom_is_written_by_the_target(serve: Serve, writer: FakeWriter) -> None:
    target = Target()
    content = lines("good", "bad", strata=True)
    batch, found = run(serve(target, **of(writer)).openai(), content, at_least=0.9)
    drawn = sampled(batch["id"])
    for i, result in enumerate(found):
        assert result["writer"] == ("target" if drawn[i] or i % 2 == 1 else "small")
        assert result["verified"] == (result["writer"] == "target")
    stated = batch["agreement"]
    assert (stated["good"]["agree"], stated["bad"]["agree"]) == (stated["good"]["checked"], 0)
    assert (stated["good"]["low"] > 0.5, stated["bad"]["high"] < 0.5) == (True, True)
    assert batch["request_counts"]["completed"] == NUM
    assert batch["cost"]["writer_s"] == pytest.approx(0.02 * NUM)  # what it wrote in vain counts too
    assert len(writer.asked) == NUM  # and it is not asked again


def test_servers_that_share_a_batch_draw_the_same_sample(serve: Serve, writer: FakeWriter) -> None:
    targets = [Target(delay_s=0.01) for _ in range(2)]
    client, _ = (serve(target, **of(writer)).openai() for target in targets)
    batch, found = run(client, lines("good"))
    assert [result["verified"] for result in found] == sampled(batch["id"])
    assert sum(target.num_written for target in targets) == sum(sampled(batch["id"]))


def test_the_target_writes_where_a_policy_would_change_the_text(serve: Serve, writer: FakeWriter) -> None:
    policy = [LoadedPolicy("worse", Patterns(patterns={"*": "worse"}), "closed", 1000.0, 64)]
    batch, found = run(serve(Target(), output=policy, **of(writer)).openai(), lines("good", "bad"))
    assert {(result["writer"], result["agrees"]) for result in found[1::2]} == {("target", None)}
    [stated] = batch["agreement"].values()
    assert (stated["lines"], stated["agree"]) == (NUM // 2, stated["checked"])


def test_the_target_writes_for_a_writer_that_is_down(serve: Serve, writer: FakeWriter) -> None:
    writer.status = 500
    batch, found = run(serve(Target(), **of(writer)).openai(), lines("good"))
    assert {(result["writer"], result["verified"], result["agrees"]) for result in found} == {("target", True, None)}
    assert batch["agreement"] == {}
    assert batch["cost"]["ratio"] is None


@pytest.mark.parametrize("asked", [{"echo": True}, {"n": 2}, {"logprobs": True}])
def test_the_target_writes_what_a_writer_would_not(serve: Serve, writer: FakeWriter, asked: dict[str, Any]) -> None:
    content = jsonl(*(chat_line(f"{i}", "say good", **asked) for i in range(4)))
    _, found = run(serve(Target(), **of(writer)).openai(), content)
    assert {result["writer"] for result in found} == {"target"}
    assert not writer.asked


def test_a_rule_keeps_lines_from_writers(serve: Serve, writer: FakeWriter, tmp_path: Path) -> None:
    (file := tmp_path / "policy.yaml").write_text("version: 1\ndefault: {writers: []}\n")
    _, found = run(serve(Target(), rules=PolicyFile(file), **of(writer)).openai(), lines("good"))
    assert {result["writer"] for result in found} == {"target"}
    assert writer.asked == []


@pytest.mark.parametrize(
    ("endpoint", "verify", "said"),
    [
        ("/v1/completions", {}, "allowed: /v1/chat/completions"),
        ("/v1/chat/completions", {"writer": "large"}, "rule: small"),
        ("/v1/chat/completions", {"share": 0}, "share"),
        ("/v1/chat/completions", {"use": "poems"}, "use"),
    ],
)
def test_other_batches_are_refused(serve: Serve, writer: FakeWriter, endpoint: str, verify: Any, said: str) -> None:
    client = serve(Target(), **of(writer)).openai()
    with pytest.raises(openai.BadRequestError, match=said):
        made(client, lines("good"), endpoint, extra_body={"verify": verify})


def test_presets_are_shown_in_full(serve: Serve, writer: FakeWriter) -> None:
    client = serve(Target(), **of(writer)).openai()
    batch = made(client, lines("good"), extra_body={"verify": {"use": "label", "share": 0.2}}).model_dump()
    assert batch["verify"] == {
        "use": "label",
        "writer": None,
        "share": 0.2,
        "by": "rewrite",
        "similarity": 1.0,
        "at_least": 0.95,
    }
    ended(client, openai.types.Batch.model_construct(id=batch["id"]))


def written(*agrees: bool | None, writer: str = "small", stratum: str = "all") -> list[str]:
    return [
        json.dumps({"stratum": stratum, "writer": writer, "agrees": agree, "writer_s": 1.0, "target_s": 2.0})
        for agree in agrees
    ]


def test_a_stratum_without_a_check_is_written_again() -> None:
    found = dict(
        enumerate([*written(True, True, None), *written(None, None, stratum="few"), *written(None, writer="target")])
    )
    stated, again = agreement(found, 0.9)
    assert again == [3, 4]
    assert stated["few"] == {"lines": 2, "checked": 0, "agree": 0, "low": 0.0, "high": 1.0}
    assert agreement(found, None)[1] == []
    assert cost(found.values())["against_all_s"] is None
