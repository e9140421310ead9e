"""Worker and proposer class for a plain `vllm serve` of version 0.32: our drafts and sampler inside vLLM's worker.

    vllm serve DIR --worker-cls prolepsis.adapters.vllm.plugin_v0_32.Worker \
        --speculative-config '{"method": "custom_class",
        "model": "prolepsis.adapters.vllm.plugin_v0_32.Proposer", "num_speculative_tokens": 8}'

The worker gives the proposer its model runner's requests and exchanges the two samplers, plain attributes. A batch with
a parameter that our sampler does not know there (`served.is_ours`) is sampled by vLLM's own: equal in law, other seeds.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from vllm.platforms import current_platform
from vllm.v1.outputs import SamplerOutput

from prolepsis.adapters.vllm.chains import ChainProposer
from prolepsis.adapters.vllm.served import ServedRequests, is_ours
from prolepsis.engine.drafting.proposers.prompt_lookup import PromptLookupProposer
from prolepsis.engine.drafting.proposers.suffix import SuffixProposer
from prolepsis.engine.models.files.generation_config import token_ids
from prolepsis.engine.sampling.sampler import Sampler

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as _Worker
else:
    from vllm.v1.worker.gpu_worker import Worker as _Worker

_PADDING = -1
"""What vLLM ignores in a row of sampled tokens."""


class Proposer:
    """What vLLM asks for drafts after each pass."""

    def __init__(self, vllm_config: Any) -> None:
        self.num_speculative_tokens: int = vllm_config.speculative_config.num_speculative_tokens
        self.runner: Any = None
        self.served: ServedRequests | None = None

    def load_model(self, *_: object) -> None:
        """There is nothing to load."""

    def propose(self, sampled_token_ids: Sequence[Sequence[int]], *_: object, **__: object) -> list[list[int]]:
        """Return the drafts of a batch; a sequence that sampled nothing is still computing its prompt."""
        if self.served is None:
            return [[] for _ in sampled_token_ids]
        keys = self.runner.input_batch.req_ids[: len(sampled_token_ids)]
        return self.served.propose(keys, [bool(tokens) for tokens in sampled_token_ids])


class _Keyed:
    """Takes the place of a sampler of the model runner."""

    def __init__(self, inner: Any, runner: Any, served: ServedRequests) -> None:
        self._inner = inner
        self._runner = runner
        self._served = served

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _keys(self) -> list[str]:
        """Return the requests of the batch; none for those that are not ours to sample, and while vLLM warms up."""
        keys: list[str] = self._runner.input_batch.req_ids
        requests = self._runner.requests
        return keys if all(is_ours(requests[key].sampling_params) for key in keys) else []

    def _output(
        self, keys: Sequence[str], drafts: Sequence[Sequence[int]], logits: Tensor, width: int
    ) -> SamplerOutput:
        picked = self._served.sample(keys, drafts, logits.float().contiguous())
        rows = [[*tokens, *[_PADDING] * (width - len(tokens))] for tokens in picked]
        return SamplerOutput(torch.tensor(rows, dtype=torch.int32, device=logits.device), logprobs_tensors=None)


class KeyedSampler(_Keyed):
    """Samples batches without drafts."""

    def __call__(self, logits: Tensor, sampling_metadata: Any, **more: Any) -> SamplerOutput:
        keys = self._keys()
        if not keys:
            return self._inner(logits=logits, sampling_metadata=sampling_metadata, **more)
        return self._output(keys, [()] * len(keys), logits, 1)


class KeyedRejectionSampler(_Keyed):
    """Samples batches with drafts: the keyed pick decides at each node, and equality accepts."""

    def __call__(self, metadata: Any, draft_probs: Any, logits: Tensor, sampling_metadata: Any) -> SamplerOutput:
        keys = self._keys()
        if not keys:
            return self._inner(metadata, draft_probs, logits, sampling_metadata)
        drafted, first = metadata.draft_token_ids.tolist(), 0
        drafts: list[Sequence[int]] = []
        for size in metadata.num_draft_tokens:
            drafts.append(drafted[first : first + size])
            first += size
        return self._output(keys, drafts, logits, metadata.max_spec_len + 1)


class Worker(_Worker):  # type: ignore[misc]  # vLLM's classes are not known here
    """vLLM's worker with our proposers and sampler."""

    def load_model(self, *arguments: Any, **named: Any) -> None:
        super().load_model(*arguments, **named)
        runner = self.model_runner
        proposer = getattr(runner, "drafter", None)
        depth = proposer.num_speculative_tokens if isinstance(proposer, Proposer) else 0
        model = self.vllm_config.model_config
        stated = (model.hf_text_config.eos_token_id, (model.try_get_generation_config() or {}).get("eos_token_id"))
        ends = [token for value in stated for token in token_ids(value)]
        proposers = [ChainProposer(SuffixProposer()), ChainProposer(PromptLookupProposer())]
        served = ServedRequests(lambda: runner.requests, proposers, Sampler(model.get_vocab_size(), ends), depth)
        runner.sampler = KeyedSampler(runner.sampler, runner, served)
        if hasattr(runner, "rejection_sampler"):
            runner.rejection_sampler = KeyedRejectionSampler(runner.rejection_sampler, runner, served)
        if isinstance(proposer, Proposer):
            proposer.runner, proposer.served = runner, served
        self._served = served

    def prolepsis_counts(self) -> dict[str, Any]:
        """Return what was drafted and accepted: by proposer in all, and of live requests; for `collective_rpc`."""
        return {
            "verified": {name: asdict(counts) for name, counts in self._served.counts.items()},
            "shadow": {name: asdict(counts) for name, counts in self._served.shadow_counts.items()},
            "live": self._served.live_counts(),
        }
