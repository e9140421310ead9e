"""Answers as llama.cpp's: every stream equals its twin."""

import json
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from prolepsis.engine.text.named_tokens import FillMarks
from tests.fake_client import INFO
from tests.server.conftest import served
from tests.server.fakes import ByteTokenizer, FakeEngine

TEXT = "Grüße, world! 👋\ndone"
PROMPT: dict[str, Any] = {"prompt": "Hi"}
GAP: dict[str, Any] = {"input_prefix": "x = ", "input_suffix": "\n"}


class Filling(ByteTokenizer):
    fill_marks = FillMarks(253, 254, 255)


def events(reply: httpx2.Response) -> list[dict[str, Any]]:
    parts = reply.text.split("\n\n")
    assert parts[-1] == ""
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-1]]


def lasting(reply: dict[str, Any]) -> dict[str, Any]:
    """Return what does not depend on time, nor on the way in which text and tokens come."""
    settings = {k: v for k, v in reply["generation_settings"].items() if k not in ("seed", "stream")}
    varying = ("content", "tokens", "timings", "completion_probabilities")
    return {k: v for k, v in reply.items() if k not in varying} | {"generation_settings": settings}


@pytest.mark.parametrize("step", [1, 4, 500])
@pytest.mark.parametrize(
    ("path", "body", "stop_type", "word"),
    [
        ("completion", PROMPT, "eos", ""),
        ("completions", {**PROMPT, "n_predict": 9}, "limit", ""),
        ("completion", {"prompt": [72, "i"], "stop": ["world"]}, "word", "world"),
        ("completion", {**PROMPT, "n_probs": 1}, "eos", ""),
        ("completion", {**PROMPT, "n_predict": 0}, "limit", ""),
        ("infill", GAP, "eos", ""),
    ],
)
def test_the_stream_tells_what_its_twin_shows(
    step: int, path: str, body: dict[str, Any], stop_type: str, word: str
) -> None:
    engine = FakeEngine(text=TEXT, step=step, info=replace(INFO, max_model_len=4096))
    with served(engine, tokenizer=Filling()) as running:
        whole = httpx2.post(f"{running.url}/{path}", json={**body, "return_tokens": True}).json()
        parts = events(httpx2.post(f"{running.url}/{path}", json={**body, "stream": True}))
    last = parts[-1]
    assert [part["stop"] for part in parts] == [*[False] * (len(parts) - 1), True]
    for name in ("content", "tokens"):
        assert [one for part in parts for one in part[name]] == list(whole[name])
    probs = [one for part in parts for one in part.get("completion_probabilities", ())]
    assert probs == whole.get("completion_probabilities", [])
    assert lasting(last) == lasting(whole)
    assert (whole["stop_type"], whole["stopping_word"], whole["model"]) == (stop_type, word, "tiny")
    assert whole["tokens_predicted"] == len(whole["tokens"])
    if "n_predict" not in body and not word:
        assert (whole["content"], whole["has_new_line"], whole["truncated"]) == (TEXT, True, False)
        assert whole["prompt"] == ("Hi" if path != "infill" else whole["prompt"])


def test_counts_times_and_probabilities() -> None:
    with served(FakeEngine()) as running:
        reply = httpx2.post(f"{running.url}/completion", json={**PROMPT, "n_probs": 1}).json()
    times = reply["timings"]
    assert (times["prompt_ms"], times["predicted_ms"]) == (pytest.approx(100), pytest.approx(300))
    assert times["cache_n"] + times["prompt_n"] == 2
    assert times["predicted_n"] == reply["tokens_predicted"]
    assert times["predicted_per_second"] == pytest.approx(times["predicted_n"] / 0.3)
    assert reply["tokens_evaluated"] == 2
    token = reply["completion_probabilities"][0]
    assert bytes(token["bytes"]).decode() == token["token"]
    assert set(token["top_logprobs"][0]) == {"id", "token", "bytes", "logprob"}


LINES = "one\ntwo\nthree\nfour"


@pytest.mark.parametrize("step", [1, 5, 500])
@pytest.mark.parametrize("stream", [True, False])
def test_a_limit_of_time_ends_the_answer_with_its_line(step: int, stream: bool) -> None:
    """A time that is over at once ends it behind the first line; the tokens are those of the whole answer."""
    body = {**PROMPT, "t_max_predict_ms": 1e-9, "stream": stream}
    engine = FakeEngine(text=LINES, step=step)
    with served(engine) as running:
        reply = httpx2.post(f"{running.url}/completion", json=body)
        late = httpx2.post(f"{running.url}/completion", json={**PROMPT, "t_max_predict_ms": 3.6e6}).json()
        unbounded = httpx2.post(f"{running.url}/completion", json={**PROMPT, "t_max_predict_ms": -1}).json()
    last = events(reply)[-1] if stream else reply.json()
    text = "".join(part["content"] for part in events(reply)) if stream else last["content"]
    expected = LINES if step == 500 else "one\n"  # what has ended with its last step is shown as a whole
    assert (text, last["stop_type"]) == (expected, "eos" if step == 500 else "limit")
    assert late["content"] == unbounded["content"] == LINES
    assert engine.aborted == ([] if step == 500 else [engine.requests[0].request_id])


def test_only_the_fields_that_are_asked_for_are_shown() -> None:
    fields = ["content", "timings/prompt_n", "timings/none", "none", "content/x"]
    with served(FakeEngine()) as running:
        whole = httpx2.post(f"{running.url}/completion", json={**PROMPT, "response_fields": fields}).json()
        every = httpx2.post(f"{running.url}/completion", json={**PROMPT, "response_fields": []}).json()
        stream = httpx2.post(f"{running.url}/completion", json={**PROMPT, "response_fields": ["stop"], "stream": True})
    assert whole == {"content": "Grüße, world! 👋 done", "timings/prompt_n": 0}
    assert "generation_settings" in every
    assert (events(stream)[-1], "index" in events(stream)[0]) == ({"stop": True}, True)
