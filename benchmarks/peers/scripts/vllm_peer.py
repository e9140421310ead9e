"""vLLM, in process: bf16, greedy; variants `ngram` (5 tokens), `suffix` (needs arctic-inference) and `plugin`, ours."""

import time
from typing import Any

SPECULATION: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "ngram": {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 5, "prompt_lookup_min": 2},
    "suffix": {"method": "suffix"},
    "plugin": {
        "method": "custom_class",
        "model": "prolepsis.adapters.vllm.plugin_v0_32.Proposer",
        "num_speculative_tokens": 24,  # as many as `suffix` may draft
    },
}
WORKERS = {"plugin": "prolepsis.adapters.vllm.plugin_v0_32.Worker"}


class Peer:
    """Options: model (folder of safetensors), variant, eos (token ids), max_model_len, max_num_seqs."""

    def __init__(self, options: dict[str, Any]) -> None:
        import torch
        import vllm

        self._vllm = vllm
        self._eos = options["eos"]
        self._num_begun = 0
        self._is_ours = options["variant"] in WORKERS
        self._llm = vllm.LLM(
            options["model"],
            dtype="bfloat16",
            max_model_len=options["max_model_len"],
            max_num_seqs=options["max_num_seqs"],
            speculative_config=SPECULATION[options["variant"]],
            worker_cls=WORKERS.get(options["variant"], "auto"),
            seed=0,
        )
        self.versions = {"vllm": vllm.__version__, "torch": torch.__version__}

    def begin(self) -> None:
        """Forget cached prefixes and what was learned of outputs; our plug-in learns under a new salt."""
        self._num_begun += 1
        self._llm.reset_prefix_cache()
        drafter: Any = getattr(self._runner(), "drafter", None)
        cache = getattr(drafter, "suffix_cache", None)
        if cache is not None:
            fresh = type(cache)(max_tree_depth=cache.max_tree_depth, max_cached_requests=cache.max_cached_requests)
            drafter.suffix_cache = fresh

    def run(self, prompts: list[list[int]], max_tokens: int, concurrency: int) -> list[dict[str, Any]]:
        """Answer one after another, or with vLLM's own batching where `concurrency` is above 1."""
        params = self._vllm.SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            stop_token_ids=self._eos,
            ignore_eos=False,
            detokenize=False,
            extra_args={"prolepsis_salt": str(self._num_begun)} if self._is_ours else None,
        )
        if concurrency == 1:
            return [self._one(prompt, params) for prompt in prompts]
        return self._batched(prompts, params, concurrency)

    def _one(self, prompt: list[int], params: Any) -> dict[str, Any]:
        started = time.perf_counter()
        out = self._llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        return {"tokens": list(out[0].outputs[0].token_ids), "seconds": time.perf_counter() - started}

    def _batched(self, prompts: list[list[int]], params: Any, concurrency: int) -> list[dict[str, Any]]:
        """Step the engine with `concurrency` requests in flight, timing each from its submission."""
        engine = self._llm.llm_engine
        outcomes: list[dict[str, Any]] = [{} for _ in prompts]
        submitted: dict[str, float] = {}
        waiting = list(enumerate(prompts))
        while waiting or submitted:
            while waiting and len(submitted) < concurrency:
                i, prompt = waiting.pop(0)
                submitted[str(i)] = time.perf_counter()
                engine.add_request(str(i), {"prompt_token_ids": prompt}, params)
            for out in engine.step():
                if out.finished:
                    key = out.request_id.split("-")[0]
                    tokens = list(out.outputs[0].token_ids)
                    outcomes[int(key)] = {"tokens": tokens, "seconds": time.perf_counter() - submitted.pop(key)}
        return outcomes

    def _runner(self) -> Any:
        """The model runner, which owns the drafter; reached through vLLM's own objects as there is no public way."""
        return self._llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
