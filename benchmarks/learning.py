"""A staged shift: how much better does a head draft for traffic that it learnt from? Tokens a pass, before and after.

Usage: python -m benchmarks.learning FOLDER [--model NAME] [--root docs] [--requests 600] [--later 80] [--json OUT]

The files below `--root` are a tenant's documents (.md) or code (.py) that nobody trained on. Requests about most of
them are answered and kept; `prolepsis learning run` learns from them; then requests about the other files, and prompts
that are shipped, are answered with the shipped head and with the learnt one. Answers have to be equal.
`FOLDER` keeps the store: where it has one, nothing is asked again, and a run that was interrupted goes on.
"""

import asyncio
import json
import os
import random
import subprocess
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.script import LOAD_S, keep, options, served
from prolepsis.core.config import CANDIDATE_HEAD, DEFAULT_MODEL, DRAFT_HEAD
from prolepsis.lab.measure.prompts import load_prompts
from tests.commands import prolepsis

_POLICY = """
rules:
  - name: shift
    match: {route: /v1/chat/completions}
    mode: "on"
    proposers: [draft_head]
    learning: {tenants: [""], run: by_hand, gain: 0.03, share: 1.0}
"""
_CHARACTERS = 800  # of a file in a prompt
_TASKS = {
    ".md": "{name} says:\n\n{text}\n\nExplain it to a new colleague, and name what it says one has to do.",
    ".py": "{name} has this part:\n```python\n{text}\n```\nWrite what comes next in the file.",
}


def requests_of(root: Path, seed: int = 0) -> list[list[str]]:
    """Return the prompts about each file below `root`, the files in a drawn order."""
    found = []
    for file in sorted(file for file in root.rglob("*") if file.suffix in _TASKS):
        parts = [""]
        for paragraph in file.read_text().split("\n\n"):
            parts[-1] += f"\n\n{paragraph}"[:_CHARACTERS]
            if len(parts[-1]) > _CHARACTERS // 2:
                parts.append("")
        found.append([_TASKS[file.suffix].format(name=file.name, text=part.strip()) for part in parts if part.strip()])
    random.Random(seed).shuffle(found)
    return found


async def answers(url: str, prompts: Sequence[str], *, tokens: int, **speculation: object) -> list[Mapping[str, Any]]:
    """Answer prompts greedily, several at once; return of each its text, its tokens and its passes."""
    room = asyncio.Semaphore(8)

    async def answer(http: httpx2.AsyncClient, prompt: str) -> Mapping[str, Any]:
        body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "temperature": 0}
        async with room:
            asked = {**body, "speculation": {"metrics": True, **speculation}}
            reply = (await http.post("/v1/chat/completions", json=asked)).raise_for_status().json()
        number = reply["usage"]["completion_tokens"]
        accepted = reply["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"]
        return {"text": reply["choices"][0]["message"]["content"], "tokens": number, "passes": number - accepted}

    async with httpx2.AsyncClient(base_url=url, timeout=3600) as http:
        return list(await asyncio.gather(*(answer(http, prompt) for prompt in prompts)))


def compared(url: str, prompts: Sequence[str], tokens: int) -> dict[str, float]:
    """Return tokens a pass of both heads, their ratio, and how many answers were equal."""
    found = {
        name: asyncio.run(answers(url, prompts, tokens=tokens, mode="always", proposer=name, max_depth=3))
        for name in (DRAFT_HEAD, CANDIDATE_HEAD)
    }
    shipped, learnt = (sum(a["tokens"] for a in of) / sum(a["passes"] for a in of) for of in found.values())
    equal = sum(a["text"] == b["text"] for a, b in zip(*found.values(), strict=True))
    return {"shipped": shipped, "learnt": learnt, "ratio": learnt / shipped, "equal": equal, "answers": len(prompts)}


def learnt_head(store: Path, asked: Sequence[str], serve: Sequence[str], tokens: int) -> tuple[str, dict[str, object]]:
    """Have requests answered and learnt from; return the head's NAME@VERSION and what its run says."""
    done = store.with_name("asked")
    if not done.exists():
        with served(
            *serve, "--store", os.environ["PROLEPSIS_STORE"], "--policy", os.environ["PROLEPSIS_POLICY"]
        ) as url:
            asyncio.run(answers(url, asked, tokens=tokens, learn=True))
        done.touch()
    began = time.monotonic()
    command = prolepsis("learning", "run", "shift", "--json")
    ended = subprocess.run(command, stdout=subprocess.PIPE, check=False)  # noqa: S603  # our own command
    run = {**json.loads(ended.stdout or b"{}"), "hours": (time.monotonic() - began) / 3600}
    if not run.get("head"):
        raise SystemExit(f"nothing was learnt: {run}")
    return str(run["head"]), run


def main() -> None:
    args = options(__doc__, "folder", model=DEFAULT_MODEL, root=Path("docs"), requests=600, later=80, tokens=128)
    folder = Path(args.folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "policy.yaml").write_text(_POLICY)
    store = folder / "store.db"
    names = {"MODEL": args.model, "STORE": f"sqlite:///{store}", "POLICY": f"{folder / 'policy.yaml'}"}
    os.environ |= {f"PROLEPSIS_{name}": value for name, value in names.items()}
    by_file = requests_of(args.root)
    first_later = len(by_file) * 6 // 7
    asked, later = (list(chain(*part)) for part in (by_file[:first_later], by_file[first_later:]))
    serve = ("--model", args.model)
    head, run = learnt_head(store, asked[: args.requests], serve, args.tokens)
    del os.environ["PROLEPSIS_POLICY"]
    with served(*serve) as url:
        swap = {"head": head, "proposer": CANDIDATE_HEAD, "reason": "benchmark"}
        httpx2.put(f"{url}/admin/heads", json=swap, timeout=LOAD_S).raise_for_status()
        base = [prompt.text for prompt in load_prompts(None)][: args.later]
        figures = {
            name: compared(url, of, args.tokens) for name, of in (("shift", later[: args.later]), ("base", base))
        }
    for name, found in figures.items():
        print(f"{name}: {found}")
    print(f"run: {run}")
    keep(args, head=head, run=run, tokens_a_pass=figures)


if __name__ == "__main__":
    main()
