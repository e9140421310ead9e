"""Workloads with known overlap, sharing, load and forms, and files that cannot be used."""

import json
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import pytest

from prolepsis.core.errors import ConfigError
from prolepsis.core.recorded_draft import RecordedDraft
from prolepsis.lab.rehearsal.trace import MeasuredTimes, Trace, TraceLine, write_trace
from prolepsis.lab.workload.profile import (
    RULES,
    ProfiledRequest,
    at_once,
    by_length,
    entropy,
    kind_of,
    overlap,
    profile_of,
    read_requests,
    report,
    served_requests,
    shared_prefix,
)
from tests.server.fakes import ByteTokenizer

PARTS = [{"type": "text", "text": "hi"}]
TOOL = {"type": "function", "function": {"name": "f"}}


def asked(prompt: list[int], answer: list[int]) -> ProfiledRequest:
    line = TraceLine(at=0.0, prompt=len(prompt), output=len(answer))
    return ProfiledRequest(line, "chat", prompt, answer)


def took(at: float, seconds: float) -> TraceLine:
    return TraceLine(at=at, prompt=1, output=1, measured=MeasuredTimes(first_token_s=0.0, total_s=seconds, num_steps=1))


def read(tmp_path: Path, *lines: object) -> list[ProfiledRequest]:
    file = tmp_path / "lines.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_requests(file, lambda: ByteTokenizer("roles, text, tools"))[0]


def test_a_lookup_guesses_what_follows_its_last_tokens() -> None:
    """Behind 4 the copied 1 is not guessed; behind 1 the answer is the prompt again, until 9; 4 has no other end."""
    requests = [asked([1, 2, 3, 4], [1, 2, 3, 4, 9])]
    by_one = overlap(requests, "1")
    assert by_one == {"last_tokens": "1", "share": 3 / 5, "run_length": 3.0, "tokens_a_pass": 5 / 2}
    by_two = overlap(requests, "2")
    assert (by_two["share"], by_two["run_length"]) == (2 / 5, 2.0), "only 3 and 4 have two known tokens before them"
    assert overlap(requests, "3")["share"] == 1 / 5
    assert overlap(requests, "4")["share"] == 0.0
    assert overlap(requests, "4")["run_length"] is None
    assert overlap(requests, "5 to 2")["share"] == 2 / 5


def test_the_latest_place_counts_and_the_longest_ngram_first() -> None:
    """After 7 came 1 and then 2; after (5, 7) came 1: the pair knows better."""
    requests = [asked([5, 7, 1, 6, 7, 2, 5, 7], [1])]
    assert overlap(requests, "1")["share"] == 0.0
    assert overlap(requests, "2")["share"] == overlap(requests, "5 to 2")["share"] == 1.0


def test_runs_end_passes() -> None:
    """Two answers that are guessed whole take a pass each; one that is not takes a pass a token."""
    whole, none = asked([3, 1, 3, 1, 3], [1, 3, 1]), asked([1, 2], [8, 9])
    found = overlap([whole, whole, none], "1")
    assert (found["share"], found["run_length"], found["tokens_a_pass"]) == (6 / 8, 3.0, 8 / 4)
    assert profile_of([asked([1], [])])["overlap"] == []


def test_prompt_tokens_are_shared_in_full_blocks_that_came_before() -> None:
    def line(prompt: int, *blocks: int) -> TraceLine:
        return TraceLine(at=0.0, prompt=prompt, output=1, blocks=blocks)

    lines = [line(25, 0, 1), line(25, 0, 2, 3), line(39, 0, 2, 3), line(10, 9)]
    assert shared_prefix(lines, 10) == (0 + 10 + 30 + 0) / 99, "a block of an answer is found by the next prompt"
    assert shared_prefix([line(25)], 10) is None


def test_requests_at_once_by_arrivals_and_durations() -> None:
    assert at_once([took(0.0, 4.0), took(1.0, 2.0), took(3.0, 5.0)]) == {"mean": 11 / 8, "most": 2}
    assert at_once([took(0.0, 4.0), took(1.0, 2.0), took(2.5, 0.1)])["most"] == 3
    assert at_once([TraceLine(at=0.0, prompt=1, output=1)]) == {}


def test_lengths_forms_and_languages(tmp_path: Path) -> None:
    python = "Write it:\n```python\nprint(1)\n```"
    found = profile_of(
        read(
            tmp_path,
            {"id": "a", "category": "c", "prompt": python},
            {"messages": [{"role": "user", "content": "где"}, {"role": "assistant", "content": "abc"}]},
            {"body": {"messages": [{"role": "user", "content": PARTS}], "response_format": {"type": "json_object"}}},
            {"prompt": "hi", "answer": "x", "tools": [TOOL], "response_format": {"type": "text"}},
        )
    )
    assert found["num_requests"] == 4
    assert found["prompt_tokens"]["p99"] == pytest.approx(len(f"user:{python}\n") - 0.03 * (len(python) - 6))
    assert found["answer_tokens"] == dict.fromkeys(("p50", "p90", "p95", "p99"), pytest.approx(2.0, abs=1.0))
    assert (found["structured_share"], found["tools_share"], found["code_share"]) == (0.25, 0.25, 0.25)
    assert found["code_blocks"] == {"python": 1}
    assert found["letters"]["cyrillic"] == pytest.approx(3 / (3 + 3 + 2 + 3 + 7 + 6 + 5))
    assert set(found["letters"]) == {"cyrillic", "latin"}


def test_the_last_message_of_the_assistant_is_the_answer(tmp_path: Path) -> None:
    user = {"role": "user", "content": "abc"}
    [ends, stated] = read(
        tmp_path, {"messages": [user, {"role": "assistant", "content": "xy"}]}, {"messages": [user], "answer": "xy"}
    )
    assert ends == stated
    assert bytes(ends.prompt_ids).decode() == "user:abc\n"
    assert bytes(ends.answer_ids).decode() == "xy"


def test_lines_with_times_and_recorded_tokens(tmp_path: Path) -> None:
    recording = {"prompt_token_ids": [65, 66], "tokens": [[67], [68]], "params": {}, "grammar": None}
    lines = read(tmp_path, {**recording, "at": 1.0, "total_s": 3.0}, {**recording, "at": 2.0, "total_s": 2.0})
    assert (lines[0].prompt_ids, lines[0].answer_ids, lines[0].text) == ([65, 66], [67], "ABC")
    found = profile_of(lines)
    assert (found["requests_a_second"], found["at_once"]) == (1.0, {"mean": 5 / 3, "most": 2})


@pytest.mark.parametrize(
    ("second", "named"),
    [
        ("{", "line 2: Expecting"),
        ("[]", "line 2: 'list'"),
        ('{"id": "a"}', "line 2: 'prompt'; needed: prompt or messages"),
        ('{"prompt": "refuse me"}', "line 2: the template refuses messages"),
        ('{"prompt": "a", "answer": 5}', "allowed: text, in quotes; given: 5; needed"),
        ('{"prompt": "a", "logprobs": ["x"]}', "line 2: could not convert"),
        ('{"prompt": "a", "at": "noon"}', "line 2: could not convert"),
        ('{"prompt_token_ids": ["a"], "tokens": [[1]]}', "line 2: invalid literal"),
    ],
)
def test_a_line_that_is_no_request_is_named(tmp_path: Path, second: str, named: str) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text(f'{{"prompt": "a"}}\n{second}\n')
    with pytest.raises(ConfigError, match=named) as refused:
        read_requests(file, ByteTokenizer)
    assert str(file) in str(refused.value)


def test_what_is_neither_trace_nor_lines_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match="columns of Azure or BurstGPT"):
        read_requests(tmp_path / "a.csv", ByteTokenizer)


def test_a_trace_needs_no_tokenizer_and_tells_of_its_drafts(tmp_path: Path) -> None:
    drafts: dict[str, tuple[RecordedDraft, ...]] = {
        "suffix": (RecordedDraft(0, 0, 4, parents=(-1, 0, 0), path=(0, 1)), RecordedDraft(0, 3, 4))
    }
    lines = (
        TraceLine(at=0.0, prompt=70, output=9, blocks=(0, 1), drafts=drafts),
        TraceLine(at=2.0, prompt=70, output=9, blocks=(0, 2), drafts=drafts, route="/v1/completions", tools=True),
    )
    write_trace(tmp_path / "trace.jsonl.gz", Trace(lines=lines))
    found, shared = read_requests(tmp_path / "trace.jsonl.gz", lambda: pytest.fail("no text is read"))
    profile = profile_of(found)
    assert shared == 32 / 140
    assert [one.category for one in found] == ["none/standard/free/short", "completions/standard/structured/short"]
    assert profile["drafts"] == {"suffix": {"drafted": 3 * 2, "right": 2 * 2}}
    assert profile["tools_share"] == 1.0, "the first says nothing of its form"
    assert (profile["overlap"], profile["code_share"], profile["letters"]) == ([], None, {})


RECORD = {
    "traffic_class": "chat-completions/standard/free/short",
    "ended_at": 105.0,
    "total_s": 5.0,
    "num_steps": 4,
    "num_prompt_tokens": 10,
    "num_output_tokens": 8,
    "num_cached_tokens": 4,
    "proposers": {"suffix": {"num_draft_tokens": 8, "num_accepted": 6}},
    "shadow": {},
}


def test_records_of_a_server() -> None:
    found, shared = served_requests([RECORD, {**RECORD, "ended_at": 107.5, "traffic_class": None, "proposers": {}}])
    assert shared == 0.4
    profile = profile_of(found)
    assert profile["at_once"] == {"mean": 10 / 7.5, "most": 2}
    assert profile["drafts"] == {"suffix": {"drafted": 8, "right": 6}}
    assert profile["structured_share"] is None
    assert [one.category for one in found] == [RECORD["traffic_class"], "none"]


def test_the_outlook_names_its_evidence_and_rules_stand_once_a_kind(tmp_path: Path) -> None:
    found = report(served_requests([RECORD])[0], "measured on this server")
    assert found["outlook"] == [
        {
            "traffic_class": RECORD["traffic_class"],
            "proposers": "suffix",
            "expect": "75% accepted",
            "because": "6 of 8 draft tokens were right",
            "evidence": "measured on this server",
        }
    ]
    assert found["rules"] == [{"kind": "short chat", **rule} for rule in RULES["short chat"]]
    copied = {"prompt": "abcabc", "answer": "abcabc", "category": "c"}
    found = report(read(tmp_path, copied, {**copied, "category": "d"}), "")
    assert [(row["traffic_class"], row["evidence"]) for row in found["outlook"]] == [
        ("c", "by overlap of your answers"),
        ("d", "by overlap of your answers"),
    ]
    assert len(found["rules"]) == len(RULES["short chat"]), "both classes are of one kind"


def figures(**told: Any) -> dict[str, Any]:
    shares = dict.fromkeys(("tools_share", "structured_share", "code_share"))
    lengths = {"prompt_tokens": {"p50": 100}, "answer_tokens": {"p50": 100}}
    return {**shares, **lengths, "at_once": {}, **told}


@pytest.mark.parametrize(
    ("name", "told", "kind"),
    [
        ("a/standard/free/short", {}, "short chat"),
        ("a/background/free/short", {"tools_share": 1.0}, "batch"),
        ("a/standard/free/short", {"at_once": {"mean": 8.0}}, "batch"),
        ("a/standard/structured/short", {}, "structured"),
        ("a/standard/structured/short", {"tools_share": 1.0}, "agent loops"),
        ("c", {"code_share": 0.6}, "code"),
        ("c", {"prompt_tokens": {"p50": 256}, "answer_tokens": {}}, "summaries"),
        ("c", {"prompt_tokens": {"p50": 600}, "answer_tokens": {"p50": 201}}, "short chat"),
        ("c", {"answer_tokens": {"p50": 501}}, "long answers"),
        ("c", {"answer_tokens": {"p50": 501}, "code_share": 0.6}, "code"),
    ],
)
def test_kinds_of_traffic(name: str, told: dict[str, Any], kind: str) -> None:
    assert kind_of(name, figures(**told)) == kind


def test_answers_by_their_length_with_what_was_accepted() -> None:
    draft = RecordedDraft(0, 0, 0, parents=(-1, 0, 1, 2), path=(0, 1, 2))
    lines = [TraceLine(at=0.0, prompt=8, output=output) for output in (64, 501, 0)]
    lines.append(TraceLine(at=0.0, prompt=8, output=600, drafts={"suffix": (draft,)}))
    found = [*by_length([ProfiledRequest(line, "c", logprobs=[-log(2.0)] * (line.output == 64)) for line in lines])]
    bits = [row.pop("entropy")["target"] for row in found]
    assert [tuple(row.values()) for row in found] == [("to_64", 1, 64, None), ("over_500", 2, 1101, 0.75)]
    assert bits == [pytest.approx(1.0), None]


def test_the_entropy_of_answers_by_their_tokens_and_by_the_target() -> None:
    """1 and 2 in turn: one bit by how often each comes, none by the token before; 3 follows 1 as often as 2 does."""
    in_turn, mixed = asked([9], [1, 2] * 8 + [1]), asked([9], [1, 2, 1, 3] * 4 + [1])
    assert entropy([in_turn]) == {"unigram": pytest.approx(0.9975, abs=1e-4), "bigram": 0.0, "target": None}
    assert entropy([mixed])["bigram"] == pytest.approx(0.5)
    assert entropy([asked([9], [1, 2, 3, 4, 5, 4, 5])])["bigram"] is None, "4 of 6 pairs came once"
    assert entropy([asked([9, 9], [])]) == {"unigram": None, "bigram": None, "target": None}
    assert entropy([asked([9], [5])]) == {"unigram": 0.0, "bigram": None, "target": None}
    sure, unsure = replace(in_turn, logprobs=[0.0]), replace(in_turn, logprobs=[log(0.25)])
    assert entropy([sure])["target"] == 0.0
    assert entropy([sure, unsure])["target"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    "kept",
    [
        [-0.5, -1.5],
        {"content": [{"token": "x", "logprob": -0.5}, {"token": "y", "logprob": -1.5}]},
        {"tokens": ["a", "x", "y"], "token_logprobs": [None, -0.5, -1.5]},
    ],
)
def test_log_probabilities_of_a_line_as_a_list_or_as_replies_have_them(tmp_path: Path, kept: object) -> None:
    [line] = read(tmp_path, {"prompt": "a", "answer": "xy", "logprobs": kept})
    assert line.logprobs == [-0.5, -1.5]
    for asked_for in (None, True, 5):
        [line] = read(tmp_path, {"body": {"prompt": "a", "answer": "xy", "logprobs": asked_for}})
        assert line.logprobs == []


def test_each_class_has_its_own_entropy(tmp_path: Path) -> None:
    lines = ({"prompt": "a", "answer": answer, "category": answer} for answer in ("aaaa", "abcd"))
    found = report(read(tmp_path, *lines), "")
    bits = [row["entropy"]["unigram"] for row in found["classes"]]
    assert (bits[0], bits[1] > bits[0], found["entropy"]["unigram"] > bits[0]) == (0.0, True, True)


def test_each_rule_of_the_field_names_its_source() -> None:
    for rules in RULES.values():
        assert {rule["proposers"] for rule in rules} == {"suffix, prompt_lookup", "draft_head"}
        assert all(rule["expect"] and rule["because"] for rule in rules)
        assert all(rule["evidence"].startswith("rule of the field: ") for rule in rules)
