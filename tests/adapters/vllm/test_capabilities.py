"""What vLLM cannot do is refused by the name of the setting."""

import pytest

from prolepsis.adapters.vllm.start import CAPABILITIES, check
from prolepsis.core.config import EngineConfig, RemoteProposerTerms
from prolepsis.core.errors import ConfigError


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("strict", "on"),
        ("forward", "native"),
        ("weights", "q4"),
        ("activations", "int8"),
        ("draft_head", "smollm2-135m-instruct"),
        ("draft_model", "some-model"),
        ("early_exit_layer", 3),
        ("chunk_limit_ms", 20.0),
        ("remote_proposer", RemoteProposerTerms(address="127.0.0.1:8600")),
        ("proposers", ("suffix", "draft_model")),
    ],
)
def test_a_setting_that_vllm_cannot_follow_is_named(setting: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{setting} .*allowed with engine vllm") as refused:
        check(EngineConfig.model_validate({"engine": "vllm", setting: value}))
    assert refused.value.param == setting


def test_the_defaults_are_allowed() -> None:
    check(EngineConfig(engine="vllm"))
    check(EngineConfig(engine="vllm", num_speculative_tokens=0, proposers=("draft_model",)))


def test_the_table_names_settings_that_there_are() -> None:
    assert {one.setting for one in CAPABILITIES} <= set(EngineConfig.model_fields)
