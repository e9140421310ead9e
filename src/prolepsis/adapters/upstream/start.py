"""Starts a client of upstream engines, with the tokenizer of their model."""

import hashlib
from collections.abc import Callable, Mapping, Sequence

from prometheus_client import CollectorRegistry

from prolepsis.adapters.upstream.api import Api
from prolepsis.adapters.upstream.capabilities import EXACTNESS, check_config
from prolepsis.adapters.upstream.client import UpstreamClient
from prolepsis.adapters.upstream.llamacpp import LlamacppApi
from prolepsis.adapters.upstream.metrics import UpstreamMetrics
from prolepsis.adapters.upstream.pool import Pool, PoolFacts, PoolLost
from prolepsis.adapters.upstream.route import PoolName
from prolepsis.adapters.upstream.sglang import SglangApi
from prolepsis.adapters.upstream.vllm import VllmApi
from prolepsis.core.config import UPSTREAM, EngineConfig
from prolepsis.core.engine_client import EngineInfo
from prolepsis.core.errors import ConfigError, ModelLoadError
from prolepsis.core.files import read_text
from prolepsis.core.network import address
from prolepsis.core.plan import SpecPlan
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.engine.models.files.described import described
from prolepsis.engine.models.files.generation_config import generation_eos
from prolepsis.engine.models.files.naming import model_name
from prolepsis.engine.models.files.recommended_sampling import default_sampling
from prolepsis.engine.models.files.source import ModelSource, open_model
from prolepsis.engine.models.files.store import resolve
from prolepsis.engine.models.files.tokenizer_files import load_tokenizer
from prolepsis.engine.text.model_tokenizer import ModelTokenizer
from prolepsis.server.run import StartedEngine


def start_upstream(config: EngineConfig, observer: Metrics | None = None) -> StartedEngine:
    """Check the pools, and return a client of them. A pool that does not answer now is looked for later.

    Raises `ConfigError` for settings that make no sense, `ModelLoadError` if the model's tokenizer is not here or no
    pool answers, `VocabularyMismatch` if a pool serves a model of another vocabulary.
    """
    check_config(config)
    urls, key_file = _urls(config), config.upstream.key_file
    key = read_text(key_file, "upstream.key_file").strip() if key_file is not None else None
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    path = resolve(config.model, config.model_dir)
    source = open_model(path)
    tokenizer = load_tokenizer(source, config)
    silent_s = config.stuck_after_s or None
    pools = [
        Pool(name, url, _api(config, tokenizer), tokenizer, headers=headers, silent_s=silent_s)
        for name, url in urls.items()
    ]
    facts = _checked(pools)
    max_model_len = _max_model_len(config, facts)
    metrics = UpstreamMetrics(observer.registry if observer is not None else CollectorRegistry())
    for pool in pools:
        metrics.up(pool.name, is_up=pool.is_up)
    num_draft_tokens = config.num_speculative_tokens if "speculating" in urls else 0
    proposers = (UPSTREAM,) if num_draft_tokens else ()
    client = UpstreamClient(
        _info(config, source, tokenizer, facts, max_model_len=max_model_len, proposers=proposers),
        config.upstream.api,
        pools,
        tokenizer,
        metrics,
        plan=SpecPlan(num_speculative_tokens=num_draft_tokens),
        eos_token_ids=(*tokenizer.eos_token_ids, *(generation_eos(path) if path.is_dir() else ())),
        observer=observer,
        max_running=config.max_requests,
    )
    return StartedEngine(client, tokenizer)


def _urls(config: EngineConfig) -> Mapping[PoolName, str]:
    given: dict[PoolName, str | None] = {
        "plain": config.upstream.plain,
        "speculating": config.upstream.speculating,
    }
    urls: dict[PoolName, str] = {}
    for name, url in given.items():
        if url is None:
            continue
        if address(url) is None:
            message = f"upstream.{name} is {url!r}; allowed: the URL of an HTTP server, such as http://10.0.0.1:8000"
            raise ConfigError(message, param="upstream")
        urls[name] = url
    if "plain" not in urls:
        message = "upstream.plain is unset; engine upstream needs engines that do not speculate, for what must be plain"
        raise ConfigError(message, param="upstream")
    return urls


def _api(config: EngineConfig, tokenizer: ModelTokenizer) -> Api:
    if config.upstream.api == "llama.cpp":
        return LlamacppApi(spelling(tokenizer))
    return SglangApi() if config.upstream.api == "sglang" else VllmApi()


def spelling(tokenizer: ModelTokenizer) -> Callable[[str], Sequence[int]]:
    """Return what spells a text that is not the first one: some tokenizers begin a first text with a space."""
    before = tokenizer.encode("\n", add_special_tokens=False)

    def spell(text: str) -> Sequence[int]:
        tokens = tokenizer.encode(f"\n{text}", add_special_tokens=False)
        is_split = tokens[: len(before)] == before
        return tokens[len(before) :] if is_split else tokenizer.encode(text, add_special_tokens=False)

    return spell


def _checked(pools: Sequence[Pool]) -> Sequence[PoolFacts]:
    """Return the facts of the pools that answer; raises `ModelLoadError` if none does."""
    for pool in pools:
        try:
            pool.up(pool.check())
        except PoolLost as error:
            pool.down(str(error))
    facts = [pool.facts for pool in pools if pool.facts is not None]
    if not facts:
        raise ModelLoadError("no upstream engine answers: " + "; ".join(f"{pool.url} {pool.detail}" for pool in pools))
    return facts


def _max_model_len(config: EngineConfig, facts: Sequence[PoolFacts]) -> int:
    longest = min(pool.max_model_len for pool in facts)
    if config.max_model_len is not None and config.max_model_len > longest:
        message = (
            f"max_model_len is {config.max_model_len}; allowed: up to {longest}, the context of the upstream engines"
        )
        raise ConfigError(message, param="max_model_len")
    return config.max_model_len or longest


def _info(
    config: EngineConfig,
    source: ModelSource,
    tokenizer: ModelTokenizer,
    facts: Sequence[PoolFacts],
    *,
    max_model_len: int,
    proposers: tuple[str, ...],
) -> EngineInfo:
    forward = f"upstream-{config.upstream.api}"
    parts = (tokenizer.fingerprint, forward, *sorted({pool.model for pool in facts}))
    return EngineInfo(
        model=model_name(config.model, source, config.model_dir),
        forward=forward,
        vocab_size=tokenizer.vocab_size,
        max_model_len=max_model_len,
        fingerprint=hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16],
        exactness="normal",
        exactness_reason=EXACTNESS,
        proposers=proposers,
        default_sampling=default_sampling(config, source=source),
        tokenizer=tokenizer.fingerprint[:16],
        files=described(source),
    )
