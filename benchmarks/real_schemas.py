"""Which schemas of a collection are refused, and do their own instances fit? Files as MaskBench has them.

Usage: python -m benchmarks.real_schemas FOLDER [--count 2000] [--seed 0] [--timeout 60] [--json OUT]

A schema is compiled by llguidance as it is, by us as a `response_format`, and as a tool's parameters without `strict`.
Its instances are read to their ends. Valid ones that only open objects take are apart; invalid ones are refused by the
grammar, or by the check at the end. A process that takes too long with one schema is ended.
"""

import argparse
import json
import logging
import multiprocessing
import random
import re
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import structlog
from llguidance import LLMatcher, LLTokenizer

from prolepsis.core.config import DEFAULT_MODEL
from prolepsis.core.errors import GrammarFailed, ProlepsisError
from prolepsis.core.requests import JSON_STYLE, GrammarSpec
from prolepsis.engine.models.files.store import resolve
from prolepsis.engine.models.files.tokenizer_files import load_tokenizer
from prolepsis.engine.text.grammar.grammars import Grammars
from prolepsis.engine.text.grammar.validation import broken
from prolepsis.server.preparing.asked_form import AskedForm, asked_form
from prolepsis.server.preparing.bodies import CompletionBody, ToolBody
from prolepsis.server.preparing.constraint import constraint, tool_use

Case = dict[str, Any]


class Judge:
    """Says what becomes of one file's schema and instances."""

    def __init__(self) -> None:
        tokenizer = load_tokenizer(resolve(DEFAULT_MODEL))
        self._encode = tokenizer.encode
        self._grammars = Grammars(tokenizer.to_json, tokenizer.vocab_size, tokenizer.eos_token_ids, max_compiled=4)
        self._plain = LLTokenizer(tokenizer.to_json(), eos_token=list(tokenizer.eos_token_ids))

    def judged(self, case: Case) -> Case:
        """Return why each way of taking the schema refuses it, and how often instances came to each end."""
        schema, ends, refused = case["schema"], Counter[str](), dict[str, str]()
        source = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=JSON_STYLE)  # type: ignore[arg-type]
        raw = LLMatcher(self._plain, source, log_level=0)
        refused["raw"] = raw.get_error() if raw.is_error() else ""
        try:
            form = self._form(schema, opened=False)
            self._reads(form.grammar, "")
            for test in case["tests"] if not refused["raw"] else ():
                text = json.dumps(test["data"], ensure_ascii=False)
                ends[f"{'valid' if test['valid'] else 'invalid'}, {self._end(schema, form, raw, text)}"] += 1
        except ProlepsisError as error:
            refused["format"] = str(error)
        if schema.get("type", "object") == "object":
            tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
            try:
                self._reads(constraint(None, tool_use([ToolBody.model_validate(tool)], "required", None)), "")
            except ProlepsisError as error:
                refused["tool"] = str(error)
        return {"ends": ends, **refused}

    def _form(self, schema: object, *, opened: bool) -> AskedForm:
        asked = {"json": schema, "disable_additional_properties": not opened}
        return asked_form(CompletionBody.model_validate({"model": "m", "prompt": "x", "structured_outputs": asked}))

    def _reads(self, spec: GrammarSpec | None, text: str) -> bool:
        """Return whether a grammar takes a whole text; raises `InvalidGrammar`."""
        assert spec is not None, "a form was asked for"
        matcher = self._grammars.compile(spec).matcher()
        try:
            matcher.advance(self._encode(text, add_special_tokens=False))
            return matcher.is_accepting()
        except GrammarFailed:
            return False

    def _end(self, schema: object, form: AskedForm, raw: LLMatcher, text: str) -> str:
        if self._reads(form.grammar, text):
            at_end = form.checked is not None and broken(form.checked, text) is not None
            return "refused at the end" if at_end else "taken"
        start = raw.deep_copy()
        if not start.consume_tokens(self._plain.tokenize_str(text)) or not start.is_accepting():
            return "refused by the library too"
        opened = self._reads(self._form(schema, opened=True).grammar, text)
        return "refused, open objects take it" if opened else "refused"


def work(ours: Connection) -> None:
    """Judge files as their paths come, until there is none."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    judge = Judge()
    while (path := ours.recv()) is not None:
        ours.send(judge.judged(json.loads(path.read_text())))


def judged(paths: list[Path], timeout_s: float) -> dict[str, Case]:
    """Return what was found of each file; a process of its own ends with a file that is too much for it."""
    found, context = dict[str, Case](), multiprocessing.get_context("spawn")
    for path in paths:
        if not found or found[[*found][-1]].get("format") == "fault":
            theirs, ours = context.Pipe()
            process = context.Process(target=work, args=(ours,), daemon=True)
            process.start()
            ours.close()
        theirs.send(path)
        try:
            found[path.name] = theirs.recv() if theirs.poll(timeout_s) else {"raw": "", "ends": {}, "format": "fault"}
        except EOFError:
            found[path.name] = {"raw": "", "ends": {}, "format": "fault"}
        if found[path.name].get("format") == "fault":
            process.kill()
    theirs.send(None)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name, default in (("--count", 2000), ("--seed", 0), ("--timeout", 60)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    paths = sorted(args.folder.glob("*.json"))
    random.Random(args.seed).shuffle(paths)
    found = judged(paths[: args.count], args.timeout)
    ends, reasons = Counter[str](), Counter[str]()
    for one in found.values():
        ends.update(one["ends"])
        for way in [way for way in ("format", "tool") if way in one and not one["raw"]]:
            reasons[f"{way}: " + re.sub(r"'[^']*'|\"[^\"]*\"|behind .* (?=its|nothing)|\d+", "…", one[way])[:110]] += 1
    print(
        f"{len(found)} schemas; the library takes {sum(not one['raw'] for one in found.values())} unchanged; of these"
    )
    for what, count in [*((f"refused as {why}", n) for why, n in reasons.most_common()), *sorted(ends.items())]:
        print(f"{count:5} {what}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
