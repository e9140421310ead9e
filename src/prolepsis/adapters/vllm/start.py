"""Starts vLLM in this process and an engine of ours around it."""

import asyncio
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import ReferenceType, ref

import structlog

from prolepsis.adapters.vllm.build import VllmEngineClient, assemble
from prolepsis.adapters.vllm.data_plane import DataPlane
from prolepsis.adapters.vllm.self_check import check_rows
from prolepsis.core.config import EngineConfig
from prolepsis.core.engine_client import EngineInfo
from prolepsis.core.errors import ConfigError, EngineDead, ModelLoadError
from prolepsis.core.figures import EngineObserver
from prolepsis.core.files import cache_directory
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.engine.build import FREE_PROPOSERS
from prolepsis.engine.kv.machine import memory_of
from prolepsis.engine.kv.memory import MemoryUse, PageShape, Room, parse_bytes, plan_pages
from prolepsis.engine.memory import context_length, warn_of_cut
from prolepsis.engine.models.files.config import for_transformers
from prolepsis.engine.models.files.described import described
from prolepsis.engine.models.files.export import export_model
from prolepsis.engine.models.files.generation_config import generation_eos, json_object, token_ids
from prolepsis.engine.models.files.identity import weights_identity
from prolepsis.engine.models.files.naming import model_name
from prolepsis.engine.models.files.recommended_sampling import default_sampling
from prolepsis.engine.models.files.source import open_model
from prolepsis.engine.models.files.store import resolve
from prolepsis.engine.models.files.tokenizer_files import load_tokenizer
from prolepsis.engine.models.files.weight_bytes import least_loaded_bytes
from prolepsis.engine.models.files.weights import folder_config
from prolepsis.engine.models.load import pick_device
from prolepsis.engine.models.targets.lean_shape import max_positions
from prolepsis.engine.native.processor import processor_name
from prolepsis.engine.start import Running, loading_again
from prolepsis.engine.text.grammar.grammars import Grammars
from prolepsis.engine.text.model_tokenizer import ModelTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

log = structlog.get_logger(__name__)
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
    for capability in CAPABILITIES:
        given = getattr(config, capability.setting)
        if given not in capability.allowed:
            allowed = ", ".join("unset" if value is None else str(value) for value in capability.allowed)
            message = f"{capability.setting} is {given!r}; allowed with engine vllm: {allowed} ({capability.why})"
            raise ConfigError(message, param=capability.setting)
    for name in config.proposers if config.num_speculative_tokens else ():
        if name not in FREE_PROPOSERS:
            allowed = ", ".join(FREE_PROPOSERS)
            message = f"proposers names {name!r}; allowed with engine vllm: {allowed}"
            raise ConfigError(message, param="proposers")
    if "rejection_sample_method" in config.vllm_args:
        message = "vllm_args has rejection_sample_method; allowed: synthetic, with which answers stay the model's"
        raise ConfigError(message, param="vllm_args")


@dataclass(slots=True)
class VllmStart:
    """What engines around data planes of one configuration are built from, one after the other."""

    config: EngineConfig
    info: EngineInfo
    eos_token_ids: tuple[int, ...]
    tokenizer: ModelTokenizer
    open_plane: Callable[[], DataPlane]  # loads the model again
    observer: EngineObserver | None = None
    _last: ReferenceType[VllmEngineClient] | None = field(default=None, init=False)

    def around(self, plane: DataPlane) -> VllmEngineClient:
        """Return the client of an engine around a plane."""
        grammars = Grammars(self.tokenizer.to_json, self.info.vocab_size, self.eos_token_ids)
        engine = assemble(
            self.config,
            plane,
            self.info,
            self.eos_token_ids,
            tokenizer=self.tokenizer,
            grammars=grammars,
            observer=self.observer,
        )
        client = VllmEngineClient(engine, plane)
        self._last = ref(client)
        return client

    async def again(self) -> VllmEngineClient:
        """Return the client of another engine; the last one has ended and is closed.

        Raises `EngineDead` where a step of the last one may still run: vLLM cannot run twice in one process.
        """
        return await asyncio.to_thread(self._rebuilt)

    def _rebuilt(self) -> VllmEngineClient:
        last = self._last() if self._last is not None else None
        if last is not None and last.watchdog.gave_up:
            raise EngineDead("a step of the last engine may still run in vLLM, which needs a new process then")
        with loading_again():  # the weights and K/V of the last one make room
            plane = self.open_plane()
            try:
                return self.around(plane)
            except BaseException:
                plane.close()  # another attempt needs its memory
                raise


def start_vllm(config: EngineConfig, observer: EngineObserver | None = None) -> Running:
    """Load the model in vLLM and put an engine and its client around it.

    Raises `ConfigError` for settings that vLLM cannot follow, `ModelLoadError` where vLLM is not installed or refuses
    the model.
    """
    check(config)
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # standard output is what commands print
    try:
        from prolepsis.adapters.vllm.v0_32 import VERSION, VllmDataPlane, VllmSettings, read_more
    except ImportError as error:
        message = f"engine is 'vllm', which is not installed here ({error}); docs/how-to/vllm.md says how"
        raise ModelLoadError(message) from error
    source = open_model(resolve(config.model, config.model_dir))
    folder = model_folder(source if isinstance(source, Path) else source.path)
    kv_bytes, max_model_len = plan_kv(config, folder)
    settings = VllmSettings(
        model=folder,
        max_model_len=max_model_len,
        max_sequences=config.max_requests,
        max_step_tokens=config.max_step_tokens,
        num_speculative_tokens=config.num_speculative_tokens,
        kv_bytes=kv_bytes,
        prefix_cache=config.prefix_cache,
        more=read_more(config.vllm_args),
    )
    plane = VllmDataPlane(settings)
    tokenizer = load_tokenizer(folder, config)
    weights = weights_identity(folder)
    forward = f"vllm-{VERSION}"
    reason = EXACTNESS
    if config.strict == "auto":
        checked = check_rows(plane, tokenizer.encode, config.max_requests, plane.max_model_len)
        reason = f"{EXACTNESS}; {checked}"
    info = EngineInfo(
        model=model_name(config.model, source, config.model_dir),
        forward=forward,
        vocab_size=plane.vocab_size,
        max_model_len=plane.max_model_len,
        fingerprint=hashlib.sha256("\n".join((tokenizer.fingerprint, weights, forward)).encode()).hexdigest()[:16],
        exactness="normal",
        exactness_reason=reason,
        proposers=(),
        default_sampling=default_sampling(config, source=source),
        weights=weights[:16],
        tokenizer=tokenizer.fingerprint[:16],
        machine=f"{processor_name()}, {plane.device}",
        files=described(folder, weights),
    )
    start = VllmStart(
        config, info, eos_token_ids(folder, tokenizer), tokenizer, partial(VllmDataPlane, settings), observer
    )
    client = start.around(plane)
    log.info("engine_built", model=info.model, forward=forward, blocks=plane.num_blocks, exactness=info.exactness)
    return Running(client, tokenizer, start.again)


VLLM_ITSELF = MemoryUse("vLLM itself", 2 << 30)
"""Libraries, buffers and the workspace of a pass, roughly: vLLM says so only after it has started."""


def plan_kv(config: EngineConfig, folder: Path) -> tuple[int, int | None]:
    """Return the bytes of vLLM's K/V and the longest sequence, planned as for our own engine; None: as vLLM finds it.

    Of a model without attention, or without a longest context, nothing can be planned: its memory must be an amount.
    Raises `MemoryPlanError` for what does not fit, `ConfigError` for a length that the model cannot hold.
    """
    model = for_transformers(folder_config(folder)).get_text_config()
    try:
        limit, page = max_positions(model), PAGE_SIZE * _token_bytes(model)
    except AttributeError:
        return parse_bytes(config.kv_memory), config.max_model_len
    length = context_length(config, limit)
    memory = memory_of(str(pick_device(config.device)))
    weights = MemoryUse("weights", least_loaded_bytes(folder, "bf16"))
    room = Room(memory.place, memory.free, [weights, VLLM_ITSELF])
    shape = PageShape(page, PAGE_SIZE, length, config.max_requests, is_cuttable=config.max_model_len is None)
    plan = plan_pages(config.kv_memory, shape, room)
    warn_of_cut(plan.max_model_len, length, config.kv_memory, room)
    longest = plan.max_model_len if plan.max_model_len < limit else config.max_model_len
    return plan.num_pages * page, longest


def _token_bytes(model: "PreTrainedConfig") -> int:
    """Return the bytes of a token's keys and values in 16 bits, over all layers, as if all attended to everything."""
    heads = getattr(model, "num_key_value_heads", None) or model.num_attention_heads
    width = getattr(model, "head_dim", None) or model.hidden_size // model.num_attention_heads
    return int(4 * model.num_hidden_layers * heads * width)


def model_folder(path: Path) -> Path:
    """Return the model as a folder of safetensors; a GGUF file is written as one once, into the cache directory."""
    if path.is_dir():
        return path
    folder = cache_directory() / "exported" / weights_identity(path)[:16]
    if not folder.exists():
        log.info("exporting_model", model=str(path), folder=str(folder))
    return export_model(path, folder)


def eos_token_ids(folder: Path, tokenizer: ModelTokenizer) -> tuple[int, ...]:
    """Return the tokens that end a text, as config.json, generation_config.json and the tokenizer name them."""
    stated = token_ids(json_object(folder / "config.json").get("eos_token_id"))
    return tuple(dict.fromkeys([*stated, *generation_eos(folder), *tokenizer.eos_token_ids]))
