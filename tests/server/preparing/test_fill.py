"""Fill in the middle: `suffix` of /v1/completions."""

import json
from dataclasses import replace

import httpx2
import pytest

from prolepsis.core.errors import InvalidParameter
from prolepsis.engine.text.named_tokens import FillMarks
from prolepsis.server.preparing.fill import Gap, fill_prompt, fill_stop, gap_prompt
from tests.fake_client import INFO
from tests.server.conftest import served
from tests.server.fakes import ByteTokenizer, FakeEngine

BEFORE, AFTER = "def f(x):\n    y = ", "\n    return y\n"
MARKS = FillMarks(253, 254, 255)


class Filling(ByteTokenizer):
    fill_marks = MARKS


def test_the_prompt_is_what_the_model_has_learnt() -> None:
    expected = [253, *BEFORE.encode(), 254, *AFTER.encode(), 255]
    assert fill_prompt(BEFORE, AFTER, Filling()) == expected


def test_a_model_with_bos_begins_with_it() -> None:
    class WithBos(Filling):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            return [*([250] if add_special_tokens else []), *text.encode()]

    assert fill_prompt("a", "b", WithBos()) == [250, 253, *b"a", 254, *b"b", 255]


@pytest.mark.parametrize(
    ("after", "stop"),
    [
        ("\n    return y\n", ("\n    return y\n",)),
        ("\n\n    return y", ("\n    return y",)),
        (")\n    return y", ()),
        ("\n}\n", ()),
        ("", ()),
    ],
)
def test_the_middle_ends_before_it_repeats_what_follows(after: str, stop: tuple[str, ...]) -> None:
    assert fill_stop(after) == stop


GAP = Gap("a\nb\n", "c", "d\n", [("x.py", "one"), ("y.py", "two")])


def test_a_project_is_shown_by_the_models_marks() -> None:
    class OfProjects(Filling):
        fill_marks = FillMarks(253, 254, 255, 251, 252)

    files = [251, *b"myproject\n", 252, *b"x.py\none", 252, *b"y.py\ntwo", 252, *b"filename\n"]
    assert gap_prompt(GAP, OfProjects(), 400) == [*files, 253, *b"a\nb\nc", 254, *b"d\n", 255]


def test_without_such_marks_files_are_snippets() -> None:
    between = b"\n\n--- snippet ---\n\n"
    expected = [*between, *b"one", *between, *b"two", 253, *b"a\nb\nc", 254, *b"d\n", 255]
    assert gap_prompt(GAP, Filling(), 400) == expected


def test_of_what_is_too_long_the_nearest_stays() -> None:
    gap = Gap("b" * 100 + "c", "d", "e" + "f" * 100, [("x.py", "h" * 100)])
    assert gap_prompt(gap, Filling(), 40) == [*b"h", 253, *b"b" * 28, *b"cd", 254, *b"e", *b"f" * 5, 255]
    assert len(gap_prompt(Gap("a", "", "b", gap.files), Filling(), 40)) == 40
    assert gap_prompt(Gap("a", "", "b", gap.files), Filling(), 40)[-10:] == [*b"hhhhh", 253, *b"a", 254, *b"b", 255]


def test_over_http() -> None:
    engine = FakeEngine("x + 1\n    return y\n", info=replace(INFO, vocab_size=300))
    with served(engine, tokenizer=Filling()) as server:
        completions = server.openai().completions
        choice = completions.create(model="tiny", prompt=BEFORE, suffix=AFTER, max_tokens=64).choices[0]
        assert (choice.text, choice.finish_reason) == ("x + 1", "stop")
        assert list(engine.requests[0].prompt_token_ids) == fill_prompt(BEFORE, AFTER, Filling())
        own = completions.create(model="tiny", prompt=BEFORE, suffix=AFTER, max_tokens=64, stop=["+"]).choices[0]
        assert own.text == "x ", "the caller's own stop strings count alone"
        streamed = completions.create(model="tiny", prompt=BEFORE, suffix=AFTER, max_tokens=64, stream=True)
        assert "".join(chunk.choices[0].text for chunk in streamed) == "x + 1"
        plain = completions.create(model="tiny", prompt=BEFORE, suffix="", max_tokens=64).choices[0]
        assert plain.text == engine.text, "an empty suffix is none"


def test_a_model_without_marks_and_a_prompt_of_tokens_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="no marks to fill a middle by") as refused:
        fill_prompt(BEFORE, AFTER, ByteTokenizer())
    assert refused.value.param == "suffix"
    with pytest.raises(InvalidParameter, match="prompt of tokens"):
        fill_prompt([1, 2], AFTER, Filling())


def test_mistrals_shape_over_http() -> None:
    engine = FakeEngine("x + 1\n    return y\n", info=replace(INFO, vocab_size=300))
    gap = {"model": "tiny", "prompt": BEFORE, "suffix": AFTER, "random_seed": 7, "min_tokens": 1}
    with served(engine, tokenizer=Filling()) as server:
        url = f"{server.url}/v1/fim/completions"
        reply, stream = httpx2.post(url, json=gap), httpx2.post(url, json={**gap, "stream": True})
        short = httpx2.post(url, json={"prompt": BEFORE, "max_tokens": 2, "stop": "+", "temperature": 0}).json()
        unfit = httpx2.post(url, json={"prompt": [1], "suffix": AFTER})
        nothing = httpx2.post(url, json={"prompt": BEFORE, "max_tokens": 0}).json()
    document = reply.json()
    assert (document["object"], document["model"], document["usage"]["prompt_tokens"]) == (
        "chat.completion",
        "tiny",
        len(fill_prompt(BEFORE, AFTER, Filling())),
    )
    [choice] = document["choices"]
    assert (choice["message"]["role"], choice["message"]["content"], choice["finish_reason"]) == (
        "assistant",
        "x + 1",
        "stop",
    )
    chunks = [json.loads(line.removeprefix("data: ")) for line in stream.text.split("\n\n")[:-2]]
    assert stream.text.endswith("data: [DONE]\n\n")
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "x + 1"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert (nothing["usage"]["completion_tokens"], engine.requests[3].params.max_tokens) == (0, 0)
    first, _, bounded, _ = engine.requests
    assert (first.params.seed, first.params.min_tokens) == (7, 1)
    assert first.params.max_tokens == INFO.max_model_len - len(first.prompt_token_ids), "the rest of the context"
    assert (bounded.params.stop, short["choices"][0]["finish_reason"]) == (("+",), "length")
    assert short["choices"][0]["message"]["content"] == "x "
    assert (unfit.status_code, unfit.json()["error"]["param"]) == (400, "prompt")


def test_marks_in_a_middle_are_text() -> None:
    text = '<think>a</think><tool_call>{"name": "f", "arguments": {}}</tool_call>'
    with served(FakeEngine(text), tokenizer=Filling()) as server:
        reply = httpx2.post(f"{server.url}/v1/fim/completions", json={"prompt": "a"})
    assert reply.json()["choices"][0]["message"]["content"] == text
