"""A staged shift: how much better does a head draft for traffic that it learnt from? Tokens a pass, before and after.

Usage: python -m benchmarks.learning FOLDER [--model NAME] [--root docs] [--requests 1800] [--later 80] [--json OUT]

The files below `--root` are a tenant's documents (.md) or code (.py) that nobody trained on. Requests about most are
answered and learnt from; then those about the others, and shipped prompts, are answered with the shipped head and with
the learnt one: answers have to be equal. `FOLDER` keeps the store, so that the same command goes on.
"""

import asyncio
import json
import os
import random
import subprocess
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2

from benchmarks.script import LOAD_S, keep, options, served
from prolepsis.control.store.configured import ready_database
from prolepsis.control.store.lineage import LineageTable
from prolepsis.core.config import CANDIDATE_HEAD, DEFAULT_MODEL, DRAFT_HEAD
from prolepsis.engine.models.heads.exchange import import_archive
from prolepsis.lab.measure.prompts import load_prompts
from tests.commands import prolepsis

_POLICY = """
rules:
  - {name: shift, match: {route: /v1/chat/completions}, mode: "on", proposers: [draft_head],
     learning: {tenants: [""], run: by_hand, share: 1.0}}
"""
_PARTS = {".md": "{name} says:\n\n{text}\n\n", ".py": "{name} has this part:\n```python\n{text}\n```\n"}
_TASKS = {
    ".md": ("Explain it to a new colleague.", "What does one have to do?", "Write it as a list of short points."),
    ".py": ("Write what comes next in the file.", "Write it anew, with comments.", "Write tests of it with pytest."),
}


def requests_of(root: Path, seed: int = 0) -> list[list[str]]:
    """Return the prompts about each file below `root`, each with up to 1,200 characters of it, in a drawn order."""
    found = []
    for file in sorted(file for file in root.rglob("*") if file.suffix in _TASKS):
        parts = [""]
        for paragraph in file.read_text().split("\n\n"):
            parts[-1] += f"\n\n{paragraph}"[:800]
            if len(parts[-1]) > 400:
                parts.append("")
        texts = [_PARTS[file.suffix].format(name=file.name, text=part.strip()) for part in parts if part.strip()]
        found.append([text + task for task in _TASKS[file.suffix] for text in texts])
    random.Random(seed).shuffle(found)
    return found


async def answers(
    url: str, prompts: Sequence[str], tokens: int, speculation: Mapping[str, object], **more: object
) -> list[Mapping[str, Any]]:
    """Answer prompts greedily, several at once; return of each its text, its tokens and its passes."""
    room = asyncio.Semaphore(8)

    async def answer(http: httpx2.AsyncClient, prompt: str) -> Mapping[str, Any]:
        body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "temperature": 0, **more}
        async with room:
            body["speculation"] = {"metrics": True, **speculation}
            reply = (await http.post("/v1/chat/completions", json=body)).raise_for_status().json()
        number, figures = reply["usage"]["completion_tokens"], reply["metrics"]["speculative_decoding"]
        passes = number - figures["num_accepted_draft_tokens"]
        return {"text": reply["choices"][0]["message"]["content"], "tokens": number, "passes": passes}

    async with httpx2.AsyncClient(base_url=url, timeout=3600) as http:
        return list(await asyncio.gather(*(answer(http, prompt) for prompt in prompts)))


def compared(url: str, prompts: Sequence[str], tokens: int) -> dict[str, float]:
    """Return tokens a pass of both heads, their ratio, and how many answers were equal; neither knows the other's."""
    found = {}
    for name in (DRAFT_HEAD, CANDIDATE_HEAD):
        asked = {"mode": "always", "proposer": name, "max_depth": 3}
        found[name] = asyncio.run(answers(url, prompts, tokens, asked, cache_salt=uuid4().hex))
    shipped, learnt = (sum(a["tokens"] for a in of) / sum(a["passes"] for a in of) for of in found.values())
    equal = sum(a["text"] == b["text"] for a, b in zip(*found.values(), strict=True))
    return {"shipped": shipped, "learnt": learnt, "ratio": learnt / shipped, "equal": equal, "answers": len(prompts)}


def learnt(folder: Path, asked: Sequence[str], tokens: int) -> Mapping[str, Any]:
    """Have requests answered and learnt from; return the run: its head, the processor seconds and how it ended."""
    done, policy = folder / "asked", str(folder / "policy.yaml")
    if not done.exists():
        with served("--store", os.environ["PROLEPSIS_STORE"], "--policy", policy) as url:
            asyncio.run(answers(url, asked, tokens, {"learn": True}))
        done.touch()
    environment = {**os.environ, "PROLEPSIS_POLICY": policy}
    subprocess.run(prolepsis("learning", "run", "shift"), env=environment, check=False)  # noqa: S603  # our own command
    status = subprocess.check_output(prolepsis("learning", "status", "--json"), env=environment)  # noqa: S603
    run: Mapping[str, Any] = json.loads(status)["runs"][0]
    if not run["head"]:
        raise SystemExit(f"nothing was learnt: {run}")
    with ready_database(None) as database:
        import_archive(LineageTable(database).weights(run["head"]) or b"", run["head"])
    return run


def main() -> None:
    args = options(__doc__, "folder", model=DEFAULT_MODEL, root=Path("docs"), requests=1800, later=80, tokens=128)
    folder = Path(args.folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "policy.yaml").write_text(_POLICY)
    os.environ |= {"PROLEPSIS_MODEL": args.model, "PROLEPSIS_STORE": f"sqlite:///{folder / 'store.db'}"}
    first = len(by_file := requests_of(args.root)) * 6 // 7
    asked, later = (list(chain(*part)) for part in (by_file[:first], by_file[first:]))
    run = learnt(folder, asked[: args.requests], args.tokens)
    texts = {"shift": later, "base": [prompt.text for prompt in load_prompts(None)]}
    with served() as url:
        swap = {"head": run["head"], "proposer": CANDIDATE_HEAD, "reason": "benchmark"}
        httpx2.put(f"{url}/admin/heads", json=swap, timeout=LOAD_S).raise_for_status()
        figures = {name: compared(url, text[: args.later], args.tokens) for name, text in texts.items()}
    print(json.dumps({"run": run, **figures}, indent=2))
    keep(args, run=run, tokens_a_pass=figures)


if __name__ == "__main__":
    main()
