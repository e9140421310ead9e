"""Checks whole texts, of any origin, by a grammar: byte by byte, so that no tokenizer matters."""

import json

from llguidance import LLMatcher, LLTokenizer

from prolepsis.core.errors import InvalidGrammar
from prolepsis.core.requests import GrammarSpec
from prolepsis.engine.text.grammar.matcher import is_panic, on_deep_stack
from prolepsis.engine.text.grammar.source import llguidance_source
from prolepsis.engine.text.grammar.validation import broken


def accepts(spec: GrammarSpec, text: str) -> bool:
    """Return whether a whole text has the form; JSON may have any white space. A thread should do it.

    Raises `InvalidGrammar` for a grammar that names tokens, or does not compile.
    """
    if spec.kind == "json_schema":
        return broken(json.loads(spec.source), text) is None
    source = llguidance_source(spec)

    def read() -> bool:
        tokenizer = LLTokenizer("byte")
        matcher, tokens = LLMatcher(tokenizer, source, log_level=0), tokenizer.tokenize_bytes(text.encode())
        if matcher.is_error():
            raise InvalidGrammar(f"the {spec.kind} cannot check whole texts; allowed: one that names no tokens")
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    try:
        return on_deep_stack(read)
    except BaseException as error:
        if not is_panic(error):
            raise
        return False
