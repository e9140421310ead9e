"""User turns for the target to write: the opener, the system prompt, and how the answer is sampled.

`prompts.json` lists the kinds of turns with their openers, and the words that fill the slots of an opener: {topic},
{name}, {thing}, {language}, {other} (another language), {code} (a programming language), {number}, and {passage},
{second}, {third} and {fourth} (texts that the target wrote before). The target continues an opener that ends in a
space or newline up to the end of the turn; any other opener is a whole turn.
"""

import json
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from prolepsis.core.errors import ConfigError
from prolepsis.core.files import numbered_lines, read_text
from prolepsis.engine.text.model_tokenizer import ModelTokenizer
from prolepsis.engine.text.tokenizer import encode_message

SYSTEM_SHARE = 0.15
GREEDY_SHARE = 0.7
MAX_PASSAGES = 512
PASSAGES = 4
"""Most passages in one prompt."""
PASSAGE_CHARACTERS = (200, 1200)
OWN = "given"
"""Kind of the prompts that the user supplies."""

_WORD_SHARE = 0.7
"""Share of the slots that are filled from the vocabulary, if it has enough words."""
_CONTINUED_SHARE = 0.4
"""Share of the open openers that get one more word."""
_SHORTEST_WORD = 4
_FEWEST_WORDS = 100


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of prompt: its weight in the mix, and its openers."""

    name: str
    weight: float
    openers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PromptTables:
    """The contents of `prompts.json`."""

    kinds: tuple[Kind, ...]
    system_prompts: tuple[str, ...]
    topics: tuple[str, ...]
    names: tuple[str, ...]
    things: tuple[str, ...]
    languages: tuple[str, ...]
    programming_languages: tuple[str, ...]


@cache
def prompt_tables() -> PromptTables:
    """Read `prompts.json`."""
    tables = json.loads(Path(__file__).with_name("prompts.json").read_text(encoding="utf-8"))
    kinds = tuple(Kind(kind["name"], kind["weight"], tuple(kind["openers"])) for kind in tables.pop("kinds"))
    return PromptTables(kinds, **{name: tuple(entries) for name, entries in tables.items()})


@dataclass(frozen=True, slots=True)
class Words:
    """Words of the target's vocabulary that seed user turns; empty if the vocabulary has too few.

    Without them all turns are about the same few topics, and a head learns those topics: 794k more answer tokens about
    them raised held-out acceptance, but not the acceptance on other prompts (docs/log/2026-11.md, the fifth head).
    """

    common: tuple[str, ...] = ()
    proper: tuple[str, ...] = ()  # capitalised words: mostly names of people and places
    plural: tuple[str, ...] = ()  # words of `common` that end in s; not all of them are plurals

    def topic(self, rng: random.Random) -> str | None:
        """Return one or two words, or None."""
        if not self.common or rng.random() >= _WORD_SHARE:
            return None
        first = rng.choice(self.proper if rng.random() < 0.2 else self.common)
        second = rng.choice(self.common)
        return rng.choice((first, f"{first} and {second}", f"{first} {second}"))

    def name(self, rng: random.Random) -> str | None:
        """Return a capitalised word, or None."""
        return _word(self.proper, rng)

    def thing(self, rng: random.Random) -> str | None:
        """Return a word that may name several things, or None."""
        return _word(self.plural, rng)

    def continuation(self, rng: random.Random) -> str:
        """Return a word and a space, or an empty string."""
        word = rng.choice(self.common + self.proper) if self.common and rng.random() < _CONTINUED_SHARE else ""
        return f"{word} " if word else ""


def words_of(tokenizer: ModelTokenizer, vocab_size: int) -> Words:
    """Return the words that are single tokens after a space, in order of their ids."""
    texts = [tokenizer.decode([token]) for token in range(vocab_size)]
    words = [text[1:] for text in texts if text.startswith(" ")]
    words = [word for word in words if len(word) >= _SHORTEST_WORD and word.isascii() and word.isalpha()]
    common = tuple(word for word in words if word.islower())
    proper = tuple(word for word in words if word.istitle())
    plural = tuple(word for word in common if word.endswith("s") and not word.endswith("ss"))
    return Words(common, proper, plural) if min(map(len, (common, proper, plural))) >= _FEWEST_WORDS else Words()


def _word(words: Sequence[str], rng: random.Random) -> str | None:
    return rng.choice(words) if words and rng.random() < _WORD_SHARE else None


@dataclass(frozen=True, slots=True)
class PlannedPrompt:
    """One prompt before it is written; if `open`, the target continues `opener`."""

    number: int
    kind: str
    system: str | None
    opener: str
    open: bool
    temperature: float  # sampling temperature of the answer; 0 for most


@dataclass(frozen=True, slots=True)
class OwnPrompt:
    """A user turn that the user supplies."""

    text: str
    kind: str = OWN
    system: str | None = None


class PromptPlanner:
    """Plans prompts: a number always gives the same plan, except for the passages, which the target writes."""

    def __init__(self, seed: int, own: Sequence[OwnPrompt] = (), words: Words | None = None) -> None:
        """`own` are the user's prompts; `words` fill slots in addition to the tables."""
        self._seed = seed
        self._own = own
        self._words = words or Words()
        self._tables = prompt_tables()
        self._passages: deque[str] = deque(maxlen=MAX_PASSAGES)

    def plan(self, number: int) -> PlannedPrompt:
        """Return prompt `number`; the user's prompts come first."""
        rng = random.Random(f"{self._seed}/{number}")
        temperature = 0.0 if rng.random() < GREEDY_SHARE else round(rng.uniform(0.7, 1.0), 2)
        system = rng.choice(self._tables.system_prompts) if rng.random() < SYSTEM_SHARE else None
        if number < len(self._own):
            own = self._own[number]
            return PlannedPrompt(number, own.kind, own.system, own.text, False, temperature)
        kinds = self._tables.kinds
        kind = rng.choices(kinds, [kind.weight for kind in kinds])[0]
        opener = rng.choice(kind.openers)
        if "{passage}" in opener and len(self._passages) < PASSAGES:
            kind = next(kind for kind in kinds if kind.name == "article")
            opener = rng.choice(kind.openers)
        is_open = not opener or opener[-1].isspace()
        filled = self._fill(opener, rng) + (self._words.continuation(rng) if opener.endswith(" ") else "")
        return PlannedPrompt(number, kind.name, system, filled, is_open, temperature)

    def add_passage(self, kind: str, text: str) -> None:
        """Keep an answer for later prompts about a passage, if it is suitable."""
        shortest, longest = PASSAGE_CHARACTERS
        if kind in ("article", "question", "how-to") and len(text) >= shortest:
            self._passages.append(whole_sentences(text[:longest]))

    def _fill(self, opener: str, rng: random.Random) -> str:
        tables = self._tables
        language, second = rng.sample(tables.languages, 2)
        passages = rng.sample(list(self._passages), PASSAGES) if "{passage}" in opener else ("",) * PASSAGES
        slots = {
            "{topic}": self._words.topic(rng) or rng.choice(tables.topics),
            "{thing}": self._words.thing(rng) or rng.choice(tables.things),
            "{language}": language,
            "{other}": second,
            "{code}": rng.choice(tables.programming_languages),
            "{number}": str(rng.choice((rng.randint(2, 12), rng.randint(10, 99), 10 * rng.randint(10, 99)))),
            **dict(zip(("{passage}", "{second}", "{third}", "{fourth}"), passages, strict=True)),
        }
        while "{name}" in opener:
            opener = opener.replace("{name}", self._words.name(rng) or rng.choice(tables.names), 1)
        for slot, value in slots.items():
            opener = opener.replace(slot, value)
        return opener


def whole_sentences(text: str) -> str:
    """Return `text` up to its last sentence end, or all of it if it has none."""
    end = max(text.rfind(mark) for mark in (". ", ".\n", "! ", "? "))
    return text[: end + 1].strip() if end > 0 and not text.rstrip().endswith((".", "!", "?")) else text.strip()


def turn_prefix(tokenizer: ModelTokenizer, system: str | None, opener: str) -> list[int]:
    """Return the chat template's tokens up to and including a user turn that begins with `opener`.

    A model that has no chat template begins with `opener` itself.
    """
    if tokenizer.chat_template is None:
        return tokenizer.encode(opener.rstrip(" "))
    mark = "PROLEPSIS-TURN"
    whole = tokenizer.decode(whole_turn(tokenizer, system, mark), skip_special_tokens=False)
    before, _, _ = whole.partition(mark)
    return tokenizer.encode(before + opener.rstrip(" "), add_special_tokens=False)


def whole_turn(tokenizer: ModelTokenizer, system: str | None, user: str) -> list[int]:
    """Return the tokens of a conversation's first turn, up to the answer; without a template the tokens of `user`."""
    return encode_message(user, tokenizer, system=None if tokenizer.chat_template is None else system)


def read_prompts(file: Path) -> list[OwnPrompt]:
    """Read the user's prompts: on each line a JSON object with `prompt`, and `kind` and `system` if it has them.

    Raises `ConfigError` that names the first invalid line.
    """
    prompts = []
    for number, line in numbered_lines(read_text(file, "prompts", most_bytes=2**32)):
        try:
            given = json.loads(line)
            system = given.get("system")
            prompts.append(
                OwnPrompt(str(given["prompt"]), str(given.get("kind", OWN)), None if system is None else str(system))
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{file}, line {number}: not a JSON object with 'prompt': {error!r}", param="prompts"
            ) from error
    return prompts
