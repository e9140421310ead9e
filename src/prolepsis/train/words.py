"""Words of the target's vocabulary, which user turns are seeded with: without them all are about the same few topics.

A head that is trained on text about few topics learns these topics: 794k more answer tokens about the same ones raised
held-out acceptance and none on prompts of other origin; 332k seeded so brought a little (docs/log.md, 2026-11-22).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from prolepsis.models.files.tokenizer import Tokenizer

_SHARE = 0.7
"""Of the slots that are filled with such words, where there are any."""
_CONTINUED = 0.4
"""Of the openers within a line, for the target to write on from, that get a word more."""
_SHORTEST = 4
_FEWEST = 100
"""Words; a vocabulary with fewer has none to speak of."""


@dataclass(frozen=True, slots=True)
class Words:
    """Words that are tokens of their own; empty where the vocabulary has too few."""

    common: tuple[str, ...] = ()
    proper: tuple[str, ...] = ()
    """Capitalised: mostly names of people and places."""
    plural: tuple[str, ...] = ()
    """Those of `common` that end in s: not all of them plurals."""

    def topic(self, rng: random.Random) -> str | None:
        """Return one or two words, or nothing."""
        if not self.common or rng.random() >= _SHARE:
            return None
        first = rng.choice(self.proper if rng.random() < 0.2 else self.common)
        second = rng.choice(self.common)
        return rng.choice((first, f"{first} and {second}", f"{first} {second}"))

    def name(self, rng: random.Random) -> str | None:
        """Return a capitalised word, or nothing."""
        return _draw(self.proper, rng)

    def thing(self, rng: random.Random) -> str | None:
        """Return what may be the name of several things, or nothing."""
        return _draw(self.plural, rng)

    def more(self, rng: random.Random) -> str:
        """Return a word and a space to go on from, or nothing."""
        word = rng.choice(self.common + self.proper) if self.common and rng.random() < _CONTINUED else ""
        return f"{word} " if word else ""


def words_of(tokenizer: Tokenizer, vocab_size: int) -> Words:
    """Return the words that are single tokens with a space in front, in order of their ids."""
    texts = [tokenizer.decode([token]) for token in range(vocab_size)]
    words = [text[1:] for text in texts if text.startswith(" ")]
    words = [word for word in words if len(word) >= _SHORTEST and word.isascii() and word.isalpha()]
    common = tuple(word for word in words if word.islower())
    proper = tuple(word for word in words if word.istitle())
    plural = tuple(word for word in common if word.endswith("s") and not word.endswith("ss"))
    return Words(common, proper, plural) if min(map(len, (common, proper, plural))) >= _FEWEST else Words()


def _draw(words: Sequence[str], rng: random.Random) -> str | None:
    return rng.choice(words) if words and rng.random() < _SHARE else None
