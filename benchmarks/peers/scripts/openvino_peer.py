"""openvino-genai on the CPU: bf16 precision hint, greedy; variant `lookup` with prompt lookup decoding."""

import time
from typing import Any


class Peer:
    """Options: model (folder of an fp16 IR), variant, threads, eos (token ids), max_num_seqs."""

    def __init__(self, options: dict[str, Any]) -> None:
        import numpy
        import openvino
        import openvino_genai

        self._numpy, self._openvino, self._genai = numpy, openvino, openvino_genai
        self._lookup = options["variant"] == "lookup"
        self._eos = options["eos"]
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_seqs = options["max_num_seqs"]
        scheduler.enable_prefix_caching = False
        scheduler.cache_size = 2
        properties: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": "bf16",
            "INFERENCE_NUM_THREADS": options["threads"],
        }
        if self._lookup:
            properties["prompt_lookup"] = True
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(options["model"], scheduler, "CPU", properties)
        self.versions = {"openvino": openvino.__version__, "openvino_genai": openvino_genai.__version__}

    def begin(self) -> None:
        """Nothing is kept between prompts: prefix caching is off, as it cannot be emptied."""

    def run(self, prompts: list[list[int]], max_tokens: int, concurrency: int) -> list[dict[str, Any]]:
        """Answer one after another, or with its continuous batching where `concurrency` is above 1."""
        if concurrency == 1:
            return [self._one(prompt, max_tokens) for prompt in prompts]
        return self._batched(prompts, max_tokens, concurrency)

    def _one(self, prompt: list[int], max_tokens: int) -> dict[str, Any]:
        started = time.perf_counter()
        out = self._pipeline.generate([self._tensor(prompt)], [self._config(max_tokens)])
        return {"tokens": list(out[0].m_generation_ids[0]), "seconds": time.perf_counter() - started}

    def _batched(self, prompts: list[list[int]], max_tokens: int, concurrency: int) -> list[dict[str, Any]]:
        """Step the pipeline with `concurrency` requests in flight, timing each from its submission."""
        outcomes: list[dict[str, Any]] = [{} for _ in prompts]
        flying: dict[int, tuple[Any, float, list[int]]] = {}
        waiting = list(enumerate(prompts))
        while waiting or flying:
            while waiting and len(flying) < concurrency:
                i, prompt = waiting.pop(0)
                handle = self._pipeline.add_request(i, self._tensor(prompt), self._config(max_tokens))
                flying[i] = (handle, time.perf_counter(), [])
            self._pipeline.step()
            for i, (handle, submitted, tokens) in list(flying.items()):
                while handle.can_read():
                    for output in handle.read().values():
                        tokens.extend(output.generated_ids)
                if handle.get_status() == self._genai.GenerationStatus.FINISHED:
                    outcomes[i] = {"tokens": tokens, "seconds": time.perf_counter() - submitted}
                    del flying[i]
        return outcomes

    def _tensor(self, prompt: list[int]) -> Any:
        return self._openvino.Tensor(self._numpy.array([prompt], dtype=self._numpy.int64))

    def _config(self, max_tokens: int) -> Any:
        config = self._genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.do_sample = False
        config.eos_token_id = self._eos[0]
        config.stop_token_ids = set(self._eos)
        if self._lookup:
            config.num_assistant_tokens = 5
            config.max_ngram_size = 3
        return config
