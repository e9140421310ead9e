"""Which schemas of a collection are refused, and do their own instances fit? Schemas as MaskBench has them.

Usage: python -m benchmarks.real_schemas FOLDER [--count 2000] [--seed 0] [--timeout 60] [--match TEXT] [--json OUT]

Each file of FOLDER has a `schema` and `tests`: `data` and whether it is `valid`. llguidance compiles a schema as it is;
we compile it as a `response_format` and as the parameters of a tool without `strict`. Each instance is read to its end,
written as `json.dumps` does; a valid one that only open objects take is counted apart, and an invalid one is refused by
the grammar or by the check at the end. A process that takes too long with one schema is ended.
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
from prolepsis.engine.grammar.grammars import Grammars
from prolepsis.engine.grammar.validation import broken
from prolepsis.engine.models.files.store import resolve
from prolepsis.engine.models.files.tokenizer import ModelTokenizer
from prolepsis.engine.models.files.tokenizer_files import load_tokenizer
from prolepsis.server.openai.asked_form import AskedForm, asked_form
from prolepsis.server.openai.bodies import CompletionBody, ToolBody
from prolepsis.server.openai.constraint import constraint, tool_use

Case = dict[str, Any]
CALL = '<tool_call>\n{{"name": "f", "arguments": {}}}\n</tool_call>'


class Judge:
    """Says what becomes of one file's schema and instances."""

    def __init__(self, tokenizer: ModelTokenizer) -> None:
        self._tokenizer = tokenizer
        self._grammars = Grammars(tokenizer.to_json, tokenizer.vocab_size, tokenizer.eos_token_ids, max_compiled=4)
        self._plain = LLTokenizer(tokenizer.to_json(), eos_token=list(tokenizer.eos_token_ids))

    def judged(self, case: Case) -> Case:
        """Return why each way of taking the schema refuses it, and how often instances came to each end."""
        schema, ends, refused = case["schema"], Counter[str](), dict[str, str]()
        source = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=JSON_STYLE)  # type: ignore[arg-type]
        raw = LLMatcher(self._plain, source, log_level=0)
        refused["raw"] = raw.get_error() if raw.is_error() else ""
        tests = [(bool(test["valid"]), json.dumps(test["data"], ensure_ascii=False)) for test in case["tests"]]
        fitting = list[str]()
        try:
            form = self._form(schema, opened=False)
            self._reads(form.grammar, "")
            for valid, text in tests if not refused["raw"] else ():
                if self._reads(form.grammar, text):
                    fitting += [text] * (valid and text.startswith("{"))
                    at_end = form.checked is not None and broken(form.checked, text) is not None
                    kind = "refused at the end" if at_end else "taken"
                else:
                    kind = self._why(schema, raw, text) if valid else "refused"
                ends[f"{'valid' if valid else 'invalid'}, {kind}"] += 1
        except ProlepsisError as error:
            refused["format"] = str(error)
        if schema.get("type", "object") == "object":
            try:
                tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
                call = constraint(None, tool_use([ToolBody.model_validate(tool)], "required", None))
                self._reads(call, "")
                ends["valid, refused of a tool"] += sum(not self._reads(call, CALL.format(text)) for text in fitting)
            except ProlepsisError as error:
                refused["tool"] = str(error)
        return {"ends": ends, **refused}

    def _form(self, schema: object, *, opened: bool) -> AskedForm:
        asked = {"json": schema, "disable_additional_properties": not opened}
        body = CompletionBody.model_validate({"model": "m", "prompt": "x", "structured_outputs": asked})
        return asked_form(body)

    def _reads(self, spec: GrammarSpec | None, text: str) -> bool:
        """Return whether a grammar takes a whole text; raises `InvalidGrammar`."""
        assert spec is not None, "a form was asked for"
        matcher = self._grammars.compile(spec).matcher()
        try:
            matcher.advance(self._tokenizer.encode(text, add_special_tokens=False))
            return matcher.is_accepting()
        except GrammarFailed:
            return False

    def _why(self, schema: object, raw: LLMatcher, text: str) -> str:
        """Return who refuses a valid instance."""
        start = raw.deep_copy()
        if not start.consume_tokens(self._plain.tokenize_str(text)) or not start.is_accepting():
            return "refused by the library too"
        try:
            opened = self._reads(self._form(schema, opened=True).grammar, text)
        except ProlepsisError:
            return "refused"
        return "refused, open objects take it" if opened else "refused"


def work(ours: Connection, model: str) -> None:
    """Judge files as their paths come."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    judge = Judge(load_tokenizer(resolve(model)))
    while (path := ours.recv()) is not None:
        try:
            ours.send(judge.judged(json.loads(path.read_text())))
        except Exception as error:  # it is a fault of ours, which is what the table is for
            ours.send({"raw": "", "ends": {}, "format": f"fault: {type(error).__name__} {error}"})


def all_judged(paths: list[Path], model: str, timeout_s: float) -> dict[str, Case]:
    """Return what was found of each file; a process of its own is lost with a file that takes too long."""
    found, process = dict[str, Case](), None
    context = multiprocessing.get_context("spawn")
    for number, path in enumerate(paths):
        if process is None:
            theirs, ours = context.Pipe()
            process = context.Process(target=work, args=(ours, model), daemon=True)
            process.start()
            ours.close()
        theirs.send(path)
        if theirs.poll(timeout_s + 30 * (number == 0)):
            try:
                found[path.name] = theirs.recv()
                continue
            except EOFError:
                found[path.name] = {"raw": "", "ends": {}, "format": "fault: the process ended"}
        else:
            found[path.name] = {"raw": "", "ends": {}, "format": "timeout"}
        process.kill()
        process = None
    if process is not None:
        theirs.send(None)
        process.join()
    return found


def reason(message: str) -> str:
    """Return a message without what differs from schema to schema."""
    return re.sub(r"'[^']*'|\"[^\"]*\"|\(at .*\)|behind .* nothing|\d+|/.*/|(?<=json_schema's )\S+", "…", message)[:110]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    for name, default in (("--count", 2000), ("--seed", 0), ("--timeout", 60)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--match", default="", help="only files whose names hold it")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    paths = sorted(path for path in args.folder.glob("*.json") if args.match in path.name)
    random.Random(args.seed).shuffle(paths)
    found = all_judged(paths[: args.count], args.model, args.timeout)
    ends, reasons = Counter[str](), Counter[tuple[str, str]]()
    for one in found.values():
        ends.update(one["ends"])
        reasons.update((way, reason(one[way])) for way in ("format", "tool") if way in one and not one["raw"])
    print(
        f"{len(found)} schemas; the library takes {sum(not one['raw'] for one in found.values())} unchanged; of these"
    )
    for (way, why), count in reasons.most_common():
        print(f"{count:5} refused as {way}: {why}")
    for end, count in sorted(ends.items()):
        print(f"{count:5} instances {end}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
