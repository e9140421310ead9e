"""`exact` on a fake engine: what is compared with what, what is said of differences, exit statuses."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from prolepsis.adapters.vllm.build import VllmEngineClient
from prolepsis.adapters.vllm.data_plane import ComputedPass
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.core.terminal.output import BAD_INPUT, FAILED
from prolepsis.lab.exact import FirstDifference, check, difference, print_result
from prolepsis.lab.measure.prompts import Prompt
from prolepsis.server.cli.main import app
from tests.adapters.vllm.table_plane import TablePlane, build
from tests.fakes import EOS
from tests.lab.measure.fakes import Alter, ByteTokenizer, table_client, tokens_of, two_prompts
from tests.load.server import LetterTokenizer

PARAMS = SamplingParams(max_tokens=6, temperature=0.8, seed=3)


def wrong_when_sampled_in_a_batch(request: GenerateRequest, speculating: bool) -> list[int]:
    tokens = tokens_of(request, speculating)
    return [*tokens[:4], 250, 251] if "mixed" in request.cache_salt and request.params.temperature > 0 else tokens


def short_when_speculated(request: GenerateRequest, speculating: bool) -> list[int]:
    tokens = tokens_of(request, speculating)
    return tokens[:-3] if speculating else tokens


def test_the_first_difference() -> None:
    assert difference("alone", [1, 2], [1, 2]) is None
    assert difference("alone", [1, 2, 3], [1, 5, 3]) == FirstDifference("alone", 1, 2, 5)
    assert difference("alone", [1, 2], [1, 2, 3]) == FirstDifference("alone", 2, None, 3)
    assert difference("alone", [1], []) == FirstDifference("alone", 0, 1, None)


async def test_every_prompt_runs_greedy_and_sampled_in_three_runs() -> None:
    client = table_client(plain_s=0.0, speculated_s=0.0)
    assert (await check(two_prompts(), PARAMS, 3, client, ByteTokenizer()))["identical"]
    assert len(client.requests) == 2 * 2 * 3
    plain, alone, mixed = client.requests[:4], client.requests[4:8], client.requests[8:]
    assert not any(request.speculation.enabled for request in plain)
    assert all(request.speculation.enabled for request in alone)
    assert {request.speculation.enabled for request in mixed} == {True, False}
    assert [request.params.temperature for request in plain] == [0.0, 0.8, 0.0, 0.8]
    assert [request.params.seed for request in plain] == [0, 3, 0, 4]
    assert not {r.cache_salt for r in plain} & {r.cache_salt for r in [*alone, *mixed]}
    assert not {r.cache_salt for r in alone} & {r.cache_salt for r in mixed}
    assert len({r.cache_salt for r in plain}) == len(plain), "plain decoding reuses nobody's cache"


async def test_a_difference_is_shown_with_position_tokens_and_class() -> None:
    client = table_client(wrong_when_sampled_in_a_batch, 0.0, 0.0)
    told = await check(two_prompts(), PARAMS, 3, client, ByteTokenizer())
    assert (told["identical"], told["num_requests"], told["num_different"]) == (False, 4, 2)
    requests: Any = told["requests"]
    assert [request["identical"] for request in requests] == [True, False, True, False]
    (difference,) = requests[1]["differences"]
    expected = tokens_of(client.requests[1], False)[4]
    assert difference == {
        "run": "mixed",
        "position": 4,
        "plain": expected,
        "other": 250,
        "kind": "near_tie",
        "margin": 0.03,
        "plain_text": bytes([expected]).decode(errors="replace"),
        "other_text": "\ufffd",
    }


async def test_an_answer_that_ends_early_is_an_unclassified_difference() -> None:
    client = table_client(short_when_speculated, 0.0, 0.0)
    told = await check(two_prompts(), PARAMS, 3, client, ByteTokenizer())
    first = told["requests"][0]["differences"][0]
    assert [first[name] for name in ("run", "position", "other", "kind")] == ["alone", 3, None, None]


class EndingLetters(LetterTokenizer):
    eos_token_ids = (EOS,)


@dataclass(slots=True)
class Turning(TablePlane):
    """The second token of each row comes by `gap` after the first one, and before it for requests that speculate."""

    gap: float = 0.01

    def compute(self, drafts: Mapping[str, Sequence[int]]) -> ComputedPass:
        computed = TablePlane.compute(self, drafts)
        logits = computed.logits.clone()
        if len(logits):
            best = logits.topk(2)
            is_plain = all(key.startswith("exact plain") or " again" in key for key in self.held)
            gap = -self.gap if is_plain else self.gap
            logits.scatter_(1, best.indices[:, 1:], best.values[:, :1] + gap)
        return replace(computed, logits=logits)


@pytest.mark.parametrize(("gap", "kinds"), [(0.01, {"near_tie"}), (4.0, {"structural"})])
async def test_where_the_model_is_out_of_reach_a_replay_classifies(gap: float, kinds: set[str]) -> None:
    plane = Turning(gap=gap)
    client = VllmEngineClient(build(plane), plane)
    prompts = tuple(Prompt(str(i), "code", "abcdefgh"[i:] * 4) for i in range(4))
    told = await check(prompts, replace(PARAMS, max_tokens=60), 1, client, EndingLetters())
    await client.close()
    found = [one for case in told["requests"] for one in case["differences"]]
    assert {one["kind"] for one in found} == kinds
    assert all(one["margin"] is not None for one in found)


@pytest.mark.parametrize(("alter", "status"), [(tokens_of, 0), (wrong_when_sampled_in_a_batch, FAILED)])
@pytest.mark.parametrize("as_json", [True, False])
async def test_exit_status_and_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], alter: Alter, status: int, as_json: bool
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    told = await check(two_prompts(), PARAMS, 3, table_client(alter, 0.0, 0.0), ByteTokenizer())
    capsys.readouterr()
    assert print_result(told, as_json=as_json) == status
    printed = capsys.readouterr().out
    if as_json:
        assert json.loads(printed)["identical"] == (status == 0)
        return
    text = " ".join(printed.split())
    assert ("identical on every request" in text) == (status == 0)
    assert ("near_tie" in text) == (status != 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--temperature", "0"], "temperature is 0"),
        (["--max-tokens", "0"], "max_tokens is 0"),
        (["--prompts", "/no"], "/no"),
    ],
)
def test_bad_input(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["exact", *arguments])
    assert result.exit_code == BAD_INPUT
    assert said in " ".join(result.stderr.split())


def test_a_run_is_on_record(
    tiny_family: Callable[[str, str], Path], audit_actions: Callable[[], list[str]], tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"id": "one", "category": "chat", "prompt": "Hello"}))
    model = str(tiny_family("sentencepiece", "hermes"))
    result = CliRunner().invoke(app, ["exact", "--model", model, "--prompts", str(prompts), "--max-tokens", "4"])
    assert (result.exit_code, audit_actions()) == (0, ["exact.passed"])
