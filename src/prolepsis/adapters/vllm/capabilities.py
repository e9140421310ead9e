"""What vLLM behind our API can do. A setting that it cannot follow is refused by name, before anything is loaded."""

from dataclasses import dataclass

from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import ConfigError
from prolepsis.engine.build import FREE_PROPOSERS

EXACTNESS = (
    "vLLM computes a row differently when other rows and drafts are in the pass: drafts change no distribution, "
    "but may turn a near-tie"
)
"""Why the exactness is normal."""


@dataclass(frozen=True, slots=True)
class VllmCapability:
    """A setting of the engine, and which of its values vLLM can follow."""

    setting: str
    allowed: tuple[object, ...]
    why: str


CAPABILITIES = (
    VllmCapability("strict", ("auto", "off"), "vLLM's rows depend on the rest of the pass"),
    VllmCapability("forward", ("auto",), "vLLM has its own forward"),
    VllmCapability("weights", ("auto", "bf16"), "vLLM reads the model as a folder of safetensors"),
    VllmCapability("activations", ("auto", "bf16"), "vLLM computes with 16 bits"),
    VllmCapability("draft_head", ("auto", "none"), "vLLM shows no hidden states to a draft head of ours"),
    VllmCapability("draft_model", (None,), "a draft model's K/V would have to follow the pages of vLLM"),
    VllmCapability("remote_proposer", (None,), "its drafts are not handed to vLLM's scheduler"),
    VllmCapability("chunk_limit_ms", (40.0, 0.0), "vLLM's scheduler cuts prompts into chunks of its own"),
    VllmCapability("early_exit_layer", (None,), "vLLM stops at no layer"),
    VllmCapability("prefix_disk", ("0",), "the pages are vLLM's own"),
)
"""The settings with values that vLLM cannot follow. Those that are not here mean what they mean for our own engine, but
for `device`, `threads` and `stuck_after_s`: the first two are set by vLLM's own variables."""


def check(config: EngineConfig) -> None:
    """Raise `ConfigError` for the first setting that vLLM cannot follow, saying what is allowed and why."""
    for one in CAPABILITIES:
        given = getattr(config, one.setting)
        if given not in one.allowed:
            allowed = ", ".join("unset" if value is None else str(value) for value in one.allowed)
            message = f"{one.setting} is {given!r}; allowed with engine vllm: {allowed} ({one.why})"
            raise ConfigError(message, param=one.setting)
    for name in config.proposers if config.num_speculative_tokens else ():
        if name not in FREE_PROPOSERS:
            allowed = ", ".join(FREE_PROPOSERS)
            message = f"proposers names {name!r}; allowed with engine vllm: {allowed}"
            raise ConfigError(message, param="proposers")
    if "rejection_sample_method" in config.vllm_args:
        message = "vllm_args has rejection_sample_method; allowed: synthetic, with which answers stay the model's"
        raise ConfigError(message, param="vllm_args")
