"""What does a cheap writer save, and does a batch's stated agreement hold?

Usage: python -m benchmarks.writer TARGET [--writer MODEL] [--task label] [--lines 200] [--share 0.1] [--json OUT]

Two servers start on this machine. MODEL writes, and TARGET verifies a share of the lines. Then it verifies all of them,
in a second batch whose prompts are in no cache, which also measures the target writing all. `--task` is `label` (one of
three words) or `translate` (a sentence to German). A line agrees where `--similarity` of its words are the target's.
`inside` is the share of 100 samples, drawn as the batch's, whose interval holds the true share.
"""

import itertools
import json
import random
import tempfile
import time
from typing import Any

import httpx2

from benchmarks.script import keep, options, served
from prolepsis.control.statistics.finite import share_interval
from prolepsis.core.config import DEFAULT_MODEL

THINGS = ["kettle", "lamp", "chair", "radio", "bicycle", "tent", "printer", "keyboard", "blender", "camera"]
OPINIONS = (
    *("works as it should and looks good", "broke on the second day", "is what the picture shows", "is too loud"),
    *("makes me happy each morning", "came late and without a manual", "costs less than others", "is grey"),
    *("is the best that I have had", "smells of plastic", "has four parts", "does nothing well"),
    *("was easy to repair", "is heavier than the old one", "fits on the shelf", "stopped when it rained"),
    *("is quiet and fast", "was returned twice", "was a present", "never let me down"),
)
TASKS = {
    "label": "Is this review positive, negative or neutral? Answer with one word.\n\n",
    "translate": "Translate this sentence to German. Answer with the translation only.\n\n",
}
SEED = 7
RESAMPLINGS = 100


def lines(task: str, number: int, salt: str, model: str) -> list[dict[str, Any]]:
    """Return the lines of a batch; those of another salt share no cache with them."""
    words = ["positive", "negative", "neutral"]
    form = {"structured_outputs": {"choice": words}, "max_tokens": 8} if task == "label" else {"max_tokens": 40}
    texts = [f"The {thing} {opinion}." for thing, opinion in itertools.product(THINGS, OPINIONS)]
    return [
        {
            "custom_id": f"{i}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": model,
                "messages": [{"role": "user", "content": TASKS[task] + texts[i % len(texts)]}],
                "temperature": 0,
                "cache_salt": salt,
                **form,
            },
        }
        for i in range(number)
    ]


def run(
    http: httpx2.Client, asked: list[dict[str, Any]], **verify: object
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run a batch; return it and its results, in the order of the file."""
    content = "".join(f"{json.dumps(line)}\n" for line in asked).encode()
    file = http.post(
        "/v1/files", files={"file": ("lines.jsonl", content)}, data={"purpose": "batch"}
    ).raise_for_status()
    body = {"input_file_id": file.json()["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = http.post("/v1/batches", json={**body, "verify": verify}).raise_for_status().json()
    while batch["status"] in ("validating", "in_progress", "finalizing"):
        time.sleep(1.0)
        batch = http.get(f"/v1/batches/{batch['id']}").raise_for_status().json()
    assert batch["status"] == "completed", batch
    output = http.get(f"/v1/files/{batch['output_file_id']}/content").raise_for_status().text
    return batch, [json.loads(line) for line in output.splitlines()]


def main() -> None:
    args = options(__doc__, "target", writer=DEFAULT_MODEL, task="label", lines=200, share=0.1, similarity=1.0)
    check = {"by": "rewrite", "similarity": args.similarity}
    with tempfile.TemporaryDirectory() as folder, served("--model", args.writer) as writer:
        store, named = f"sqlite:///{folder}/store.db", ("--writers", f"small={writer}")
        with (
            served("--model", args.target, "--store", store, *named) as url,
            httpx2.Client(base_url=url, timeout=60) as http,
        ):
            model = http.get("/v1/models").raise_for_status().json()["data"][0]["id"]
            batch, _ = run(http, lines(args.task, args.lines, "verified", model), share=args.share, **check)
            every, results = run(http, lines(args.task, args.lines, "all", model), share=1.0, **check)
    agrees = [bool(result["agrees"]) for result in results if result["agrees"] is not None]
    true, draw = sum(agrees) / len(agrees), random.Random(SEED)
    size, inside = max(1, round(args.share * len(agrees))), 0
    for _ in range(RESAMPLINGS):
        low, high = share_interval(len(agrees), size, sum(draw.sample(agrees, size)))
        inside += low <= true <= high
    spent = batch["cost"]["writer_s"] + batch["cost"]["target_s"]
    figures = {
        "device_s": spent,
        "target_writes_all_s": every["cost"]["target_s"],
        "ratio": spent / every["cost"]["target_s"],
        "stated": batch["agreement"],
        "true_agreement": true,
        "inside": inside / RESAMPLINGS,
    }
    print(json.dumps(figures, indent=2))
    keep(args, seeds={"resamplings": SEED}, task=args.task, target=args.target, writer=args.writer, **figures)


if __name__ == "__main__":
    main()
