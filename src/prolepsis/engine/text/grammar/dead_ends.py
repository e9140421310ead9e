"""Finds places of a grammar behind which nothing can follow, by walks from its start to an end."""

import random
from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from prolepsis.engine.text.grammar.refusals import TABLES_FULL

NUM_WALKS = 12
MAX_STEPS = 96
"""Tokens of a walk."""
MAX_MASKS = 48
"""Places of all walks at which every token is looked at; that takes up to a millisecond."""
_LIKELY = b'"}],: 0123456789truefalsn-.e'
"""Bytes that bring an answer of JSON to its end; of others there are too many."""


class Walks:
    """Walks through grammars of one tokenizer. A grammar is always walked in the same way."""

    def __init__(self, tokenizer: LLTokenizer, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos = list(eos_token_ids)
        single = {bytes([byte]): tokenizer.tokenize_bytes(bytes([byte])) for byte in _LIKELY}
        self._likely = [tokens[0] for tokens in single.values() if len(tokens) == 1]

    def failed(self, start: LLMatcher) -> tuple[str, str] | None:
        """Return the text of a walk on which the grammar gave up or had no token left, and the error; None: none."""
        rng, num_masks = random.Random(0), 0
        for number in range(NUM_WALKS):
            stops = 0.02 if number % 3 == 0 else 0.3
            walk, tokens = start.deep_copy(), list[int]()
            for _ in range(MAX_STEPS):
                if walk.is_stopped() or walk.is_error() or (walk.is_accepting() and rng.random() < stops):
                    break
                token = self._likely_next(walk, rng)
                if token is None:
                    if num_masks == MAX_MASKS:
                        break
                    num_masks += 1
                    token = self._any_next(walk, rng)
                if token is None and not walk.is_error():
                    if walk.is_accepting():
                        break
                    return self._text(tokens), "nothing can follow"
                if token is None:
                    break
                walk.consume_token(token)
                tokens.append(token)
            if walk.is_error():
                error = walk.get_error()
                # walks share the lexer's tables, which sequences renew
                return None if TABLES_FULL in error else (self._text(tokens), error)
        return None

    def _likely_next(self, walk: LLMatcher, rng: random.Random) -> int | None:
        for token in rng.sample(self._likely, len(self._likely)):
            if walk.validate_tokens([token]):
                return token
        return None

    def _any_next(self, walk: LLMatcher, rng: random.Random) -> int | None:
        bits = np.frombuffer(walk.compute_bitmask(), np.uint8)
        mask = np.unpackbits(bits, count=self._vocab_size, bitorder="little")
        mask[self._eos] = 0
        allowed = np.flatnonzero(mask)
        return int(rng.choice(allowed)) if len(allowed) and not walk.is_error() else None

    def _text(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode_str(list(tokens))[-80:]
