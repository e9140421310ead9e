"""What upstream engines cannot do is refused by name, or decoded plainly."""

import json
from typing import Any

import pytest

from prolepsis.adapters.upstream.capabilities import (
    CAPABILITIES,
    USED,
    check_config,
    check_request,
    may_speculate,
    not_held,
    server_config,
)
from prolepsis.core.config import EngineConfig, ServerConfig, UpstreamApi, UpstreamTerms
from prolepsis.core.continuation import Continuation
from prolepsis.core.errors import ConfigError, InvalidGrammar, InvalidParameter
from prolepsis.core.requests import GrammarSpec, SamplingParams
from tests.adapters.upstream.fakes import APIS, INFO, request

ASKED: dict[str, Any] = {
    "logprobs": {"params": SamplingParams(logprobs=1)},
    "top_logprobs": {"params": SamplingParams(logprobs=-1)},
    "allowed_token_ids": {"params": SamplingParams(allowed_token_ids=(1,))},
    "logprob_token_ids": {"params": SamplingParams(logprob_token_ids=(1,))},
    "prompt_logprobs": {"params": SamplingParams(prompt_logprobs=0)},
    "max_tokens": {"params": SamplingParams(max_tokens=0)},
    "min_tokens": {"params": SamplingParams(min_tokens=1)},
    "presence_penalty": {"params": SamplingParams(presence_penalty=0.5)},
    "frequency_penalty": {"params": SamplingParams(frequency_penalty=0.5)},
    "repetition_penalty": {"params": SamplingParams(repetition_penalty=3.0)},
    "min_p": {"params": SamplingParams(min_p=0.1)},
    "logit_bias": {"params": SamplingParams(logit_bias=((1, 2.0),))},
    "continue_from": {"continue_from": Continuation(emitted=((1,),), group=INFO.exact_group)},
    "replay": {"emitted": ((1,),)},
}


def test_the_table_is_tested_whole() -> None:
    assert {one.name for one in CAPABILITIES} == set(ASKED)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("one", CAPABILITIES, ids=lambda one: one.name)
def test_what_is_asked_for_is_served_refused_or_plain(one: Any, api: UpstreamApi) -> None:
    asked = request(**ASKED[one.name])
    if api in one.apis:
        check_request(asked, api)
        assert may_speculate(asked, api) == (api in one.with_drafts)
    else:
        with pytest.raises(InvalidParameter, match=f"^{one.name} .*{api}") as refused:
            check_request(asked, api)
        assert refused.value.param == one.name


@pytest.mark.parametrize("api", APIS)
def test_a_usual_request_may_speculate(api: UpstreamApi) -> None:
    asked = request(params=SamplingParams(temperature=0.8, top_p=0.9, top_k=40, stop=("a",), repetition_penalty=1.1))
    check_request(asked, api)
    assert may_speculate(asked, api)


@pytest.mark.parametrize(
    ("kind", "allowed"),
    [("json_schema", APIS), ("regex", ("vllm", "sglang")), ("choice", ("vllm",)), ("lark", ("vllm",))],
)
def test_constraints_by_kind(kind: Any, allowed: tuple[UpstreamApi, ...]) -> None:
    asked = request(grammar=GrammarSpec(kind, "{}"))
    for api in APIS:
        if api in allowed:
            check_request(asked, api)
        else:
            with pytest.raises(InvalidGrammar, match=f"{kind} .*{api}"):
                check_request(asked, api)


@pytest.mark.parametrize(
    ("setting", "value"), [("kv_memory", "2GiB"), ("strict", "on"), ("proposers", ("suffix",)), ("threads", 2)]
)
def test_a_setting_of_our_own_engine_is_named(setting: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{setting} .*engine upstream") as refused:
        check_config(EngineConfig.model_validate({"engine": "upstream", setting: value}))
    assert refused.value.param == setting


def test_the_settings_that_count_are_there() -> None:
    assert set(USED) <= set(EngineConfig.model_fields)
    check_config(
        EngineConfig(
            engine="upstream", upstream=UpstreamTerms(plain="http://a"), num_speculative_tokens=4, max_model_len=99
        )
    )


def test_settings_of_the_server_that_upstreams_fix() -> None:
    fixed = server_config(ServerConfig(), {})
    assert (fixed.replay_sample, fixed.limits.start_drafts, fixed.engine_process) == (0.0, 0, "off")
    with pytest.raises(ConfigError, match=r"^replay_sample is 0\.5; allowed with engine upstream: 0\.0"):
        server_config(ServerConfig(replay_sample=0.5), {"replay_sample": "--replay-sample"})


@pytest.mark.parametrize("pattern", [r"^\d{4}$", r"^\w+$", r"^a\b", r"^(?=a).*$", r"^\p{L}$", r"^(a)\1$"])
def test_a_pattern_that_it_drops_is_refused_by_name(pattern: str) -> None:
    schema = {"type": "object", "properties": {"year": {"type": "string", "pattern": pattern}}}
    asked = request(grammar=GrammarSpec("json_schema", json.dumps(schema)))
    with pytest.raises(InvalidGrammar, match=r"llama\.cpp drops: pattern") as refused:
        check_request(asked, "llama.cpp")
    assert "allowed: written out" in str(refused.value)
    check_request(asked, "vllm")


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ({"pattern": "^[0-9]{4}$"}, False),
        ({"pattern": r"^a\.b\-c$"}, False),
        ({"properties": {"pattern": {"type": "string"}, "patternProperties": {"type": "object"}}}, False),
        ({"enum": [{"pattern": r"\d"}]}, False),
        ({"$defs": {"pattern": {"pattern": r"\d"}}}, True),
        ({"anyOf": [{"items": {"patternProperties": {"^a": {}}}}]}, True),
    ],
)
def test_what_is_held_is_not_refused(schema: Any, found: bool) -> None:
    assert (not_held(schema) is not None) == found
