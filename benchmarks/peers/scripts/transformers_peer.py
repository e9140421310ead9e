"""transformers' `generate`: bf16, greedy, one prompt at a time; variant `lookup` with prompt lookup decoding."""

import time
from typing import Any


class Peer:
    """Options: model (folder of safetensors), variant, threads, eos (token ids)."""

    def __init__(self, options: dict[str, Any]) -> None:
        import torch
        import transformers

        torch.set_num_threads(options["threads"])
        self._torch = torch
        self._model = transformers.AutoModelForCausalLM.from_pretrained(options["model"], dtype=torch.bfloat16).eval()
        self._choices: dict[str, Any] = {"do_sample": False, "eos_token_id": options["eos"]}
        self._choices["pad_token_id"] = options["eos"][0]
        if options["variant"] == "lookup":
            self._choices["prompt_lookup_num_tokens"] = 10
        self.versions = {"transformers": transformers.__version__, "torch": torch.__version__}

    def begin(self) -> None:
        """Nothing is kept between prompts."""

    def run(self, prompts: list[list[int]], max_tokens: int, concurrency: int) -> list[dict[str, Any]]:
        """Answer one after another; `generate` has no batching of requests that come and go."""
        if concurrency != 1:
            raise ValueError("transformers answers one prompt at a time")
        return [self._one(prompt, max_tokens) for prompt in prompts]

    def _one(self, prompt: list[int], max_tokens: int) -> dict[str, Any]:
        torch = self._torch
        started = time.perf_counter()
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            out = self._model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, **self._choices
            )
        tokens = out[0, len(prompt) :].tolist()
        return {"tokens": tokens, "seconds": time.perf_counter() - started}
