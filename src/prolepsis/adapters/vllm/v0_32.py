"""vLLM 0.32: the one module that knows its inside. Everything here but `EngineArgs` is no public interface of vLLM.

vLLM's engine core runs in this process, without its own loop: `schedule`, `execute_model`, `sample_tokens` and
`update_from_output` are called one by one. In between, the model runner keeps the logits, from which our sampler picks.
The two sampler objects of the model runner, plain attributes, are exchanged for one that returns what was picked.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vllm import __version__ as installed_version
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor import Executor
from vllm.v1.outputs import SamplerOutput

from prolepsis.adapters.vllm.data_plane import ComputedPass, ComputedRow
from prolepsis.core.errors import ModelLoadError

VERSION = "0.32"
_PADDING = -1
"""What vLLM ignores in a row of sampled tokens, and fills drafts up with."""


class NoDrafts:
    """The proposer that vLLM asks after each pass: drafts come from outside, before the next one is scheduled."""

    def __init__(self, vllm_config: object) -> None:
        pass

    def load_model(self, *_: object) -> None:
        """There is nothing to load."""

    def propose(self, sampled_token_ids: Sequence[Sequence[int]], *_: object, **__: object) -> list[list[int]]:
        return [[] for _ in sampled_token_ids]


class GivenSampler:
    """Takes the place of a sampler of the model runner: returns the tokens that were picked outside."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.tokens: list[Sequence[int]] = []
        """Of each sequence of the batch, in its order; empty for those that sample nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __call__(self, *_: object, **__: object) -> SamplerOutput:
        width = max(map(len, self.tokens), default=1) or 1
        rows = [[*tokens, *[_PADDING] * (width - len(tokens))] for tokens in self.tokens]
        if width == 1:  # vLLM reads such rows whole and drops those that sample nothing
            rows = [[max(row[0], 0)] for row in rows]
        return SamplerOutput(sampled_token_ids=torch.tensor(rows, dtype=torch.int32), logprobs_tensors=None)


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """What vLLM is started with."""

    model: Path
    max_model_len: int | None
    max_sequences: int
    max_step_tokens: int
    num_speculative_tokens: int
    kv_bytes: int
    prefix_cache: bool
    more: Mapping[str, object]  # further engine arguments of vLLM, by its names; they win over those above


class VllmDataPlane:
    """A `DataPlane`: vLLM's scheduler, K/V cache manager and model runner, on one device."""

    def __init__(self, settings: VllmSettings) -> None:
        """Load the model. Raises `ModelLoadError` for another version and for what vLLM refuses."""
        if not installed_version.startswith(f"{VERSION}."):
            raise ModelLoadError(f"vLLM {installed_version} is installed; allowed: {VERSION}.*")
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        try:
            config = EngineArgs(**_arguments(settings)).create_engine_config()
            executor = Executor.get_class(config)
            self._core = EngineCore(config, executor, log_stats=False)
            self._runner = self._core.model_executor.driver_worker.worker.model_runner
        except Exception as error:  # vLLM raises what it likes; its own log says more
            raise ModelLoadError(f"vLLM cannot serve {settings.model}: {error}") from error
        self._scheduler: Any = self._core.scheduler
        self._sampler = GivenSampler(self._runner.sampler)
        self._runner.sampler = self._sampler
        if hasattr(self._runner, "rejection_sampler"):
            self._runner.rejection_sampler = self._sampler
        self._scheduled: Any = None
        """The pass that was computed and not finished."""
        self.vocab_size: int = config.model_config.get_vocab_size()
        self.max_model_len: int = config.model_config.max_model_len
        self.num_blocks: int = config.cache_config.num_gpu_blocks - 1  # vLLM keeps one for itself
        self.block_size: int = config.cache_config.block_size
        self.device = str(self._runner.device)

    def add(self, key: str, tokens: Sequence[int], cache_salt: str) -> None:
        params = SamplingParams(
            temperature=0.0,
            max_tokens=max(1, self.max_model_len - len(tokens)),
            ignore_eos=True,
            detokenize=False,
        )
        request = EngineCoreRequest(
            request_id=key,
            prompt_token_ids=list(tokens),
            mm_features=None,
            sampling_params=params,
            pooling_params=None,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=cache_salt or None,
            data_parallel_rank=None,
        )
        self._core.add_request(*self._core.preprocess_add_request(request))

    def remove(self, keys: Sequence[str]) -> None:
        self._core.abort_requests(list(keys))

    def compute(self, drafts: Mapping[str, Sequence[int]]) -> ComputedPass:
        requests = self._scheduler.requests
        for key, request in requests.items():
            request.spec_token_ids = list(drafts.get(key, ()))
        scheduled = self._scheduler.schedule()
        if not scheduled.num_scheduled_tokens:
            return ComputedPass((), torch.empty(0))
        output = self._core.model_executor.execute_model(scheduled)
        assert output is None, "the model runner waits for the sampled tokens"
        self._scheduled = scheduled
        keys = self._runner.input_batch.req_ids
        rows = [self._row(key, scheduled) for key in keys]
        sizes = [1 + len(scheduled.scheduled_spec_decode_tokens.get(key, ())) for key in keys]
        return ComputedPass(rows, _kept(self._runner.execute_model_state.logits, rows, sizes))

    def finish(self, emitted: Mapping[str, Sequence[int]]) -> None:
        self._sampler.tokens = [emitted.get(key, ()) for key in self._runner.input_batch.req_ids]
        scheduled, self._scheduled = self._scheduled, None
        output = self._core.model_executor.sample_tokens(None)
        self._scheduler.update_from_output(scheduled, output)

    def reset(self) -> None:
        self._runner.execute_model_state = None
        self._scheduled = None
        self.remove(list(self._scheduler.requests))

    def close(self) -> None:
        self._core.shutdown()

    def _row(self, key: str, scheduled: Any) -> ComputedRow:
        request = self._scheduler.requests[key]
        num_scheduled = scheduled.num_scheduled_tokens[key]
        drafted = scheduled.scheduled_spec_decode_tokens.get(key, ())
        start = request.num_computed_tokens - num_scheduled  # vLLM counts them as computed once they are scheduled
        num_tokens, num_drafted = num_scheduled - len(drafted), sum(token != _PADDING for token in drafted)
        return ComputedRow(key, start, num_tokens, num_drafted, start + num_tokens == request.num_tokens)


def _kept(
    logits: Tensor,
    rows: Sequence[ComputedRow],
    sizes: Sequence[int],  # rows of logits of each sequence
) -> Tensor:
    """Return the rows of logits after tokens of ours, of the sequences that sample.

    vLLM computes a row for each of the other sequences too, and pads a new sequence that has one token left
    with placeholder draft tokens, so that it looks like a decoding one.
    """
    kept: list[int] = []
    first = 0
    for row, size in zip(rows, sizes, strict=True):
        kept += range(first, first + 1 + row.num_draft_tokens) if row.samples_next else ()
        first += size
    assert first == logits.shape[0], f"{first} rows of logits expected, {logits.shape[0]} given"
    dense = logits if len(kept) == first else logits[kept]
    return dense.float().contiguous()


def _arguments(settings: VllmSettings) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "model": str(settings.model),
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_sequences,
        "max_num_batched_tokens": settings.max_step_tokens,
        "kv_cache_memory_bytes": settings.kv_bytes,
        "enable_prefix_caching": settings.prefix_cache,
        "async_scheduling": False,
        "disable_log_stats": True,
        "enforce_eager": True,
    }
    if settings.num_speculative_tokens:
        arguments["speculative_config"] = {
            "method": "custom_class",
            "model": f"{__name__}.{NoDrafts.__name__}",
            "num_speculative_tokens": settings.num_speculative_tokens,
        }
    return arguments | dict(settings.more)


def read_more(text: str) -> Mapping[str, object]:
    """Return the engine arguments of a JSON object; raises `ModelLoadError` for anything else."""
    try:
        more = json.loads(text or "{}")
    except ValueError as error:
        raise ModelLoadError(f"vllm_args is no JSON: {error}") from error
    if not isinstance(more, dict):
        raise ModelLoadError(f"vllm_args is {text}; allowed: a JSON object of vLLM's engine arguments")
    return more
