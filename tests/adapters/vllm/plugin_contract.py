"""What the worker and proposer class must do in the real vLLM: `python plugin_contract.py MODEL_FOLDER` prints JSON."""

import json
import os
import sys
from collections.abc import Mapping

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from vllm import LLM, SamplingParams

PROMPT = [10, 11, 12, 13, 14, 15] * 8
PLUGIN = "prolepsis.adapters.vllm.plugin_v0_32"


def main(folder: str) -> None:
    llm = LLM(
        folder,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=512,
        max_num_seqs=4,
        enforce_eager=True,
        kv_cache_memory_bytes=64 << 20,
        enable_prefix_caching=False,
        worker_cls=f"{PLUGIN}.Worker",
        speculative_config={"method": "custom_class", "model": f"{PLUGIN}.Proposer", "num_speculative_tokens": 4},
    )

    def params(temperature: float = 0.0, **extra: object) -> SamplingParams:
        return SamplingParams(
            temperature=temperature, max_tokens=40, ignore_eos=True, seed=3, detokenize=False, extra_args=extra or None
        )

    def run(*given: SamplingParams) -> list[list[int]]:
        prompts = [{"prompt_token_ids": PROMPT} for _ in given]
        return [list(one.outputs[0].token_ids) for one in llm.generate(prompts, list(given), use_tqdm=False)]

    def drafted() -> Mapping[str, int]:
        run(params(prolepsis_mode="off"))  # requests that have ended are told with the next batch
        [counts] = llm.collective_rpc("prolepsis_counts")
        return {kind: sum(one["num_draft_tokens"] for one in counts[kind].values()) for kind in ("verified", "shadow")}

    report: dict[str, object] = {}
    before = {"verified": 0, "shadow": 0}
    for mode in ("off", "shadow", "on"):
        outputs = run(params(prolepsis_mode=mode))
        now = drafted()
        report[mode] = {"tokens": len(outputs[0]), **{kind: now[kind] - before[kind] for kind in now}}
        before = dict(now)
    report["batch"] = [len(tokens) for tokens in run(params(), params(1.0), params(prolepsis_mode="off"))]
    [first], [again] = run(params(1.0, prolepsis_mode="off")), run(params(1.0, prolepsis_mode="off"))
    report["seed_repeats"] = first == again
    asked = params()
    asked.logprobs = 2
    report["logprobs"] = len(llm.generate([{"prompt_token_ids": PROMPT}], [asked])[0].outputs[0].logprobs[0])
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
