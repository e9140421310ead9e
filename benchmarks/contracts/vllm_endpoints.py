"""How many of vLLM's own endpoint tests pass against our server, and what do the others need?

Usage: python -m benchmarks.contracts.vllm_endpoints URL CHECKOUT --tokenizer FOLDER [--python PYTHON] [--timeout 60]
           [--only FILE] [--json OUT]

CHECKOUT is the tree of vLLM 0.33.0 (a clone, or the source package of PyPI), of which nothing is kept here; FOLDER is
what `prolepsis models export` wrote of the served model, for its tokenizer. PYTHON (default: this one) has what the
tests import: anthropic, jsonschema, openai, prometheus_client, pybase64, pytest-asyncio, pytest-timeout, regex,
requests, torch and transformers; vLLM is not needed (`vllm_plugin.py`). The tests name many models, which the
server has to know:

    prolepsis serve --served-model-names "$(python -m benchmarks.contracts.vllm_endpoints --names)" \
        --lenient fields,clamp_max_tokens --metrics-vllm-names --response-retention-days 1

Left out are files whose tests need a model that reasons and calls tools by itself, and those of vLLM's classes.

Prints the tests that fail for a gap of ours, those that need something else with the reason, and the sums. Exits 1 if
more than ten gaps are left.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TESTS = "tests/entrypoints"
FILES = (
    "openai/chat_completion/test_chat",
    "openai/chat_completion/test_chat_completion",
    "openai/chat_completion/test_chat_echo",
    "openai/chat_completion/test_chat_logit_bias_validation",
    "openai/chat_completion/test_enable_force_include_usage",
    "openai/chat_completion/test_logprob_token_ids",
    "openai/chat_completion/test_root_path",
    "openai/completion/test_completion",
    "openai/completion/test_prompt_validation",
    "openai/models/test_models",
    "openai/test_chunked_prompt",
    "openai/test_return_token_ids",
    "openai/test_return_tokens_as_ids",
    "openai/test_stop_token_ids",
    "openai/responses/test_basic",
    "openai/responses/test_simple",
    "openai/responses/test_stateful",
    "openai/responses/test_structured_output",
    "openai/responses/test_function_call",
    "anthropic/test_messages",
    "serve/tokenize/test_tokenization",
    "serve/instrumentator/test_metrics",
    "serve/instrumentator/test_basic",
)
NAMES = (
    "Qwen/Qwen3-0.6B",
    "HuggingFaceH4/zephyr-7b-beta",
    "HuggingFaceTB/SmolLM2-135M-Instruct",
    "Qwen/Qwen2-1.5B-Instruct",
    "Qwen/Qwen2.5-1.5B-Instruct",
    "Qwen/Qwen3-1.7B",
    "Qwen/Qwen3-8B",
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "openai-community/gpt2",
    "claude-3-7-sonnet-latest",
)
MOST_GAPS = 10
DESELECTED = "not multimodal and not lora and not prompt_embeds and not chunked-prefill and not hidden-metrics"
# What tests need besides an API, by their names or what they end with; the first that fits counts.
NEEDS = (
    (r"Absent|calls vllm", "vLLM's own classes"),
    (
        r"root_path|force_include_usage|per_request_metrics|response_messages|return_tokens_as_ids\S*\[True\]|kv_transfer"
        r"|run_batch",
        "an option of vLLM's command, or a field that only vLLM has",
    ),
    (r"test_invocations", "the route of SageMaker"),
    (r"use_beam_search", "beam search, which is no sampling"),
    (r"streaming_cache_usage", "counts of the cache as vLLM has them, not as Anthropic does"),
    (r"test_metrics_counts", "a server that nothing else has asked"),
    (r"wrong_content_type", "a refusal of bodies that do not say that they are JSON"),
    (r"tokenize_chat_with_tools|with_return_token_strs", "the prompt of tools, or names of tokens, as vLLM has them"),
    (
        r"test_long_seed|logit_bias_invalid|test_empty_prompt|out_of_vocab|cancel_completed.*Regex",
        "vLLM's wording of an error",
    ),
    (
        r"test_single_chat_session|complex_message_content|structured_outputs_\w+_chat|response_format_json_schema"
        r"|completion_streaming\[|test_parallel_|check_models|with_tool_use|reasoning_item|reasoning_tokens_e2e"
        r"|test_(simple_input|instructions|chat)\b.*assert '3|function_call.py|anthropic_tool_call|cancellation"
        r"|anthropic_structured|more_than_one_prompt_logprobs|test_(previous_response_id|two_responses)\w*.*assert '",
        "the answers, the context or the adapters of the model that it names",
    ),
    (r"Timeout", "more time: the model does not end before the limit"),
)


def run(args: argparse.Namespace, outcomes: Path) -> None:
    """Run the tests; each leaves a line in `outcomes`."""
    files = [f"{TESTS}/{name}.py" for name in FILES if args.only in name]
    command = [args.python, "-P", "-m", "pytest", "-p", "benchmarks.contracts.vllm_plugin", "-p", "no:cacheprovider"]
    options = [f"--confcutdir={TESTS}", "--timeout", str(args.timeout), "--tb=native", "-q", "-k", DESELECTED]
    environment = {
        "PYTHONPATH": str(ROOT),
        "CONTRACT_URL": args.url,
        "CONTRACT_TOKENIZER": str(args.tokenizer.resolve()),
        "CONTRACT_OUTCOMES": str(outcomes),
        "HF_HUB_OFFLINE": "1",
    }
    subprocess.run([*command, *options, *files], cwd=args.checkout, env={**os.environ, **environment}, check=False)  # noqa: S603 - the caller's Python


def need_of(outcome: Mapping[str, str]) -> str | None:
    """Return what a test that did not pass needs besides an API; None if it shows a gap."""
    shown = f"{outcome['test']} {outcome['why']}"
    return next((need for pattern, need in NEEDS if re.search(pattern, shown, re.DOTALL)), None)


def show(outcomes: Sequence[Mapping[str, str]]) -> int:
    """Print the table; return the number of gaps."""
    passed = sum(one["outcome"] == "passed" for one in outcomes)
    needs: Counter[str] = Counter()
    gaps: list[Mapping[str, str]] = []
    for one in outcomes:
        if one["outcome"] != "passed":
            need = need_of(one)
            if need is None:
                gaps.append(one)
            else:
                needs[need] += 1
    for one in gaps:
        name = one["test"].removeprefix(f"{TESTS}/")
        print(f"gap  {name}  {one['why'][:200]}".replace("\n", " "))
    for need, count in needs.most_common():
        print(f"{count:>4}  {need}")
    print(f"{len(outcomes)} tests: {passed} pass, {len(gaps)} show a gap, {needs.total()} need something else")
    return len(gaps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?")
    parser.add_argument("checkout", nargs="?", type=Path)
    parser.add_argument("--names", action="store_true", help="print the names of models that the server must have")
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--timeout", type=int, default=60, help="seconds of a test")
    parser.add_argument("--only", default="", help="files whose names have this text")
    parser.add_argument("--again", type=Path, help="print the table of an earlier --json")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.names:
        print(",".join(NAMES))
        return
    found: list[dict[str, Any]]
    if args.again:
        found = json.loads(args.again.read_text())
    else:
        with tempfile.TemporaryDirectory() as folder:
            outcomes = Path(folder) / "outcomes.jsonl"
            run(args, outcomes)
            found = [json.loads(line) for line in outcomes.read_text().splitlines()]
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))
    sys.exit(show(found) > MOST_GAPS)


if __name__ == "__main__":
    main()
