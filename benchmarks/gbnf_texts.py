"""What of a folder's GBNF files can be written: random texts of each, and changed ones, token by token.

    python -m benchmarks.gbnf_texts FOLDER [--tokenizer TOKENIZER_JSON] [--texts 40]

It prints a line a file and exits 1 if a text is lost, or another one can be written. Texts come from the rules alone,
and so does the verdict on changed ones; each is fed in the tokenizer's own tokens and character by character.
"""

import argparse
import random
import sys
import time
from pathlib import Path
from statistics import median

from tokenizers import Tokenizer

from prolepsis.core.errors import GrammarFailed, InvalidGrammar
from prolepsis.core.requests import GrammarSpec
from prolepsis.engine.text.grammar.gbnf import read
from prolepsis.engine.text.grammar.grammars import Grammars
from prolepsis.engine.text.grammar.matcher import CompiledGrammar
from prolepsis.engine.text.grammar.source import as_lark
from tests.engine.text.grammar.gbnf_texts import Texts, is_text
from tests.engine.text.grammar.tiny import all_bytes

LONGEST, LONGEST_CHANGED = 3000, 80
"""Characters of a text; of one that the rules are asked about, which takes long."""
NUM_MASKED = 3
"""Texts of a file whose masks are computed and timed."""


class Check:
    """The texts of one grammar."""

    def __init__(self, tokenizer: Tokenizer, grammar: CompiledGrammar) -> None:
        self._tokenizer = tokenizer
        self._grammar = grammar
        self.mask_s = list[float]()

    def tokenisations(self, text: str) -> list[list[int]]:
        """Return ways to spell a text, none where the vocabulary lacks a part of it."""
        ways = [self._tokens(text), [token for char in text for token in self._tokens(char)]]
        return [way for way in ways if self._tokenizer.decode(way, skip_special_tokens=False) == text]

    def may_be_written(self, tokens: list[int], *, masks: bool = False) -> bool:
        matcher = self._grammar.matcher()
        try:
            for token in tokens:
                if masks:
                    started = time.perf_counter()
                    matcher.mask()
                    self.mask_s.append(time.perf_counter() - started)
                if matcher.is_over():
                    return False
                matcher.advance([token])
            return matcher.is_accepting()
        except GrammarFailed:
            return False

    def _tokens(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


def faults_of(file: Path, tokenizer: Tokenizer, grammars: Grammars, num_texts: int) -> list[str]:
    """Return the texts about which the grammar is wrong, and print what was seen; a refused file has none."""
    started = time.perf_counter()
    try:
        source = file.read_text(encoding="utf-8")
        lark = as_lark(source)
        converted = time.perf_counter()
        check = Check(tokenizer, grammars.compile(GrammarSpec("lark", lark)))
    except InvalidGrammar as error:
        print(f"{file.name}: refused: {error}")
        return []
    compiled, rules, rng, faults = time.perf_counter(), read(source), random.Random(0), list[str]()
    texts = Texts(rules)
    num_checked = 0
    for number in range(num_texts if texts.are_there else 0):
        text = texts.draw(rng, depth=(6, 12, 24)[number % 3])
        ways = check.tokenisations(text) if len(text) <= LONGEST else []
        num_checked += bool(ways)
        masks = number < NUM_MASKED
        faults += [f"lost: {text!r}" for way in ways if not check.may_be_written(way, masks=masks)]
        place = rng.randrange(len(text) + 1)
        changed = text[:place] + rng.choice(('"', "a", " ", "\n", "1", "")) + text[place + rng.randrange(2) :]
        for way in check.tokenisations(changed) if len(changed) <= LONGEST_CHANGED else ():
            if check.may_be_written(way) != is_text(rules, changed):
                faults.append(f"wrong about {changed!r}")
    masks_ms = [1e3 * one for one in check.mask_s or [0.0]]
    print(
        f"{file.name}: {num_checked} texts, {len(faults)} faults; read in {converted - started:.2f} s, compiled in "
        f"{compiled - converted:.2f} s; a mask {median(masks_ms):.2f} ms, at most {max(masks_ms):.1f}",
        *faults[:3],
        sep="\n  ",
    )
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json; else one of bytes and a few words")
    parser.add_argument("--texts", type=int, default=40, help="texts of a file")
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.tokenizer)) if arguments.tokenizer else all_bytes()
    grammars = Grammars(tokenizer.to_str, tokenizer.get_vocab_size(), (0,))
    files = sorted(arguments.folder.rglob("*.gbnf"))
    faults = [fault for file in files for fault in faults_of(file, tokenizer, grammars, arguments.texts)]
    print(f"{len(files)} files, {len(faults)} faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
