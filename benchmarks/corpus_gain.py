"""Does a corpus of a repository's files help an agent that writes code which is in one of them? Tokens a pass.

Usage: python -m benchmarks.corpus_gain URL [--root src/prolepsis/core] [--prompts 4] [--tokens 200] [--json OUT]

Two kinds of edits are made by rule from the files. `class`: a dataclass is described by a table of its fields, and the
model writes it. `body`: the model writes the body of a function below its signature and docstring. What it is to write
is in no prompt, but in the files. Each prompt is answered without corpora, and with the files as corpora of the
tenant; the answers have to be equal. Each round has a cache salt of its own, so neither knows the other's answers.
"""

import argparse
import ast
import asyncio
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2

from benchmarks.script import keep, options, signed

_LEAST_FIELDS, _LEAST_STATEMENTS = 6, 4
_HEAD_LINES = 20


def edits(root: Path, number: int) -> dict[str, list[str]]:
    """Return so many prompts of each kind, drawn from the files."""
    found: dict[str, list[str]] = {"class": [], "body": []}
    for file in sorted(root.rglob("*.py")):
        text = file.read_text()
        for node in ast.parse(text).body:
            for kind, prompt in _edit(node, text):
                found[kind].append(f"{file.name} begins so:\n```python\n{_head(text)}\n```\n{prompt}")
    return {kind: random.Random(1).sample(prompts, number) for kind, prompts in found.items()}


def _head(text: str) -> str:
    return "\n".join(text.splitlines()[:_HEAD_LINES])


def _edit(node: ast.stmt, text: str) -> Iterator[tuple[str, str]]:
    """Yield the prompt for a dataclass or a function of a file."""
    if isinstance(node, ast.ClassDef) and node.decorator_list:
        fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
        if len(fields) >= _LEAST_FIELDS:
            rows = "\n".join(f"| {_row(one)} |" for one in fields)
            decorator = ast.get_source_segment(text, node.decorator_list[0])
            yield (
                "class",
                f"Add the class `{node.name}`, decorated with `{decorator}`. Docstring: {ast.get_docstring(node)}\n"
                f"Its fields:\n| name | type | default |\n|---|---|---|\n{rows}\n"
                "Answer with the new class in one Python code block, and nothing else.",
            )
    elif isinstance(node, ast.FunctionDef) and ast.get_docstring(node) and len(node.body) > _LEAST_STATEMENTS:
        lines = text.splitlines()[node.lineno - 1 : node.body[0].end_lineno]
        yield (
            "body",
            "Write this function:\n```python\n" + "\n".join(lines) + "\n```\n"
            "Answer with the whole function in one Python code block, and nothing else.",
        )


def _row(field: ast.AnnAssign) -> str:
    default = ast.unparse(field.value) if field.value else "none"
    return " | ".join((ast.unparse(field.target), ast.unparse(field.annotation), default))


async def upload(http: httpx2.AsyncClient, files: Mapping[str, bytes], key: str) -> list[str]:
    """Upload the files as corpora; return their ids."""
    ids = []
    for name, content in files.items():
        parts = {"file": (name, content)}
        reply = await http.post("/v1/files", data={"purpose": "corpus"}, files=parts, headers=signed(key))
        reply.raise_for_status()
        ids.append(reply.json()["id"])
    return ids


async def answered(http: httpx2.AsyncClient, prompts: list[str], args: argparse.Namespace) -> list[Mapping[str, Any]]:
    """Answer prompts one after the other; return text, tokens, accepted ones, and characters drafted from corpora."""
    model = (await http.get("/v1/models", headers=signed(args.key))).json()["data"][0]["id"]
    salt, found = uuid4().hex, list[Mapping[str, Any]]()
    for prompt in prompts:
        body = {"model": model, "max_tokens": args.tokens, "temperature": 0, "cache_salt": salt, "seed": 1}
        body |= {"messages": [{"role": "user", "content": prompt}], "speculation": {"metrics": True, "origins": True}}
        reply = await http.post("/v1/chat/completions", json=body, headers=signed(args.key))
        reply.raise_for_status()
        answer = reply.json()
        [choice] = answer["choices"]
        drafted = sum(len(piece["text"]) for piece in choice["origins"] if piece["drafted_by"] == "corpus")
        accepted = answer["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"]
        tokens = answer["usage"]["completion_tokens"]
        text = choice["message"]["content"]
        found.append({"text": text, "tokens": tokens, "accepted": accepted, "drafted": drafted})
    return found


async def measure(args: argparse.Namespace, files: Mapping[str, bytes]) -> dict[str, object]:
    asked = edits(args.root, args.prompts)
    async with httpx2.AsyncClient(base_url=args.url, timeout=1200) as http:
        before = {kind: await answered(http, prompts, args) for kind, prompts in asked.items()}
        ids = await upload(http, files, args.key)
        held = (await http.get("/admin/corpora", headers=signed(args.key))).json()
        await answered(http, ["Hi"], argparse.Namespace(**{**vars(args), "tokens": 64}))  # has the index built
        await asyncio.sleep(args.wait)
        after = {kind: await answered(http, prompts, args) for kind, prompts in asked.items()}
        for file_id in ids:
            (await http.delete(f"/v1/files/{file_id}", headers=signed(args.key))).raise_for_status()
    kinds = {kind: _compared(before[kind], after[kind]) for kind in asked}
    return {"files": len(ids), "corpus_tokens": sum(one["tokens"] for one in held), **kinds}


def _compared(before: list[Mapping[str, Any]], after: list[Mapping[str, Any]]) -> dict[str, object]:
    """Return tokens a pass without and with corpora, over all prompts and of each."""
    one, other = [_rate(found) for found in before], [_rate(found) for found in after]
    gains = sorted(round(with_it / without, 2) for without, with_it in zip(one, other, strict=True))
    totals = [round(_tokens(found) / _passes(found), 2) for found in (before, after)]
    return {
        "without": totals[0],
        "with": totals[1],
        "gain": round(totals[1] / totals[0], 2),
        "gains of prompts": gains,
        "share drafted from corpora": round(sum(a["drafted"] for a in after) / sum(len(a["text"]) for a in after), 2),
        "equal answers": sum(a["text"] == b["text"] for a, b in zip(before, after, strict=True)),
    }


def _rate(found: Mapping[str, Any]) -> float:
    return float(_tokens([found]) / _passes([found]))


def _tokens(found: list[Mapping[str, Any]]) -> int:
    return sum(one["tokens"] for one in found)


def _passes(found: list[Mapping[str, Any]]) -> int:
    """A pass emits what it accepts, and a token more."""
    return sum(one["tokens"] - one["accepted"] for one in found)


def main() -> None:
    args = options(__doc__, "url", root=Path("src/prolepsis/core"), prompts=4, tokens=200, wait=5.0, key="")
    files = {str(file): file.read_bytes() for file in sorted(args.root.rglob("*.py"))}
    found = asyncio.run(measure(args, files))
    print(json.dumps(found, indent=2))
    keep(args, tokens_a_pass=found)


if __name__ == "__main__":
    main()
