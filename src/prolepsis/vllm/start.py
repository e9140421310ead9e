"""Starts vLLM in this process and an engine of ours around it."""

import hashlib
from pathlib import Path

import structlog

from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import ModelLoadError
from prolepsis.core.files import cache_directory
from prolepsis.engine.client import EngineInfo
from prolepsis.engine.observer import EngineObserver
from prolepsis.engine.start import Running
from prolepsis.grammar.grammars import Grammars
from prolepsis.kv.memory import parse_bytes
from prolepsis.models.files.export import export_model
from prolepsis.models.files.generation_config import generation_eos, json_object, token_ids
from prolepsis.models.files.store import default_sampling, resolve
from prolepsis.models.files.tokenizer_files import load_tokenizer
from prolepsis.models.load import weights_identity
from prolepsis.native.processor import processor_name
from prolepsis.vllm.build import PlaneFacts, assemble
from prolepsis.vllm.capabilities import EXACTNESS, check
from prolepsis.vllm.client import VllmEngineClient
from prolepsis.vllm.self_check import check_rows

log = structlog.get_logger(__name__)


def start_vllm(config: EngineConfig, observer: EngineObserver | None = None) -> Running:
    """Load the model in vLLM and put an engine and its client around it.

    Raises `ConfigError` for settings that vLLM cannot follow, `ModelLoadError` where vLLM is not installed or refuses
    the model.
    """
    check(config)
    folder = model_folder(resolve(config.model, config.model_dir))
    try:
        from prolepsis.vllm.v0_32 import VERSION, Settings, VllmDataPlane, read_more
    except ImportError as error:
        message = f"engine is 'vllm', which is not installed here ({error}); docs/how-to/vllm.md says how"
        raise ModelLoadError(message) from error
    plane = VllmDataPlane(
        Settings(
            model=folder,
            max_model_len=config.max_model_len,
            max_sequences=config.max_requests,
            max_step_tokens=config.max_step_tokens,
            num_speculative_tokens=config.num_speculative_tokens,
            kv_bytes=parse_bytes(config.kv_memory),
            prefix_cache=config.prefix_cache,
            more=read_more(config.vllm_args),
        )
    )
    tokenizer = load_tokenizer(folder)
    weights = weights_identity(folder)
    forward = f"vllm-{VERSION}"
    reason = EXACTNESS
    if config.strict == "auto":
        found = check_rows(plane, tokenizer.encode, config.max_requests, plane.max_model_len)
        reason = f"{EXACTNESS}; {found}"
    info = EngineInfo(
        model=config.model,
        forward=forward,
        vocab_size=plane.vocab_size,
        max_model_len=plane.max_model_len,
        fingerprint=hashlib.sha256("\n".join((tokenizer.fingerprint, weights, forward)).encode()).hexdigest()[:16],
        exactness="normal",
        exactness_reason=reason,
        proposers=(),
        default_sampling=default_sampling(config),
        weights=weights[:16],
        tokenizer=tokenizer.fingerprint[:16],
        machine=f"{processor_name()}, {plane.device}",
    )
    ends = eos_token_ids(folder)
    facts = PlaneFacts(info, ends, plane.num_blocks, plane.block_size)
    grammars = Grammars(tokenizer.to_json, info.vocab_size, ends)
    engine = assemble(config, plane, facts, tokenizer=tokenizer, grammars=grammars, observer=observer)
    log.info("engine_built", model=info.model, forward=forward, blocks=facts.num_blocks, exactness=info.exactness)
    return Running(VllmEngineClient(engine, plane), tokenizer)


def model_folder(path: Path) -> Path:
    """Return the model as a folder of safetensors; a GGUF file is written as one once, into the cache directory."""
    if path.is_dir():
        return path
    folder = cache_directory() / "exported" / weights_identity(path)[:16]
    if not folder.exists():
        log.info("exporting_model", model=str(path), folder=str(folder))
    return export_model(path, folder)


def eos_token_ids(folder: Path) -> tuple[int, ...]:
    """Return the tokens that end a text, as config.json and generation_config.json name them."""
    stated = token_ids(json_object(folder / "config.json").get("eos_token_id"))
    return tuple(dict.fromkeys([*stated, *generation_eos(folder)]))
