"""User turns to be written by the target: how each begins, under which system prompt, and how it is answered."""

import json
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prolepsis.core.errors import ConfigError
from prolepsis.models.tokenizer import Tokenizer
from prolepsis.train.kinds import KINDS, SYSTEM_PROMPTS
from prolepsis.train.topics import LANGUAGES, NAMES, PROGRAMMING, THINGS, TOPICS
from prolepsis.train.words import Words

SYSTEM_SHARE = 0.15
GREEDY_SHARE = 0.7
MAX_PASSAGES = 512
PASSAGES = 4
"""Passages of a prompt at most."""
PASSAGE_CHARACTERS = (200, 1200)
GIVEN = "given"
"""Kind of the prompts that the user brought."""


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """One prompt to be: the target writes on from `opener` where `open`."""

    number: int
    kind: str
    system: str | None
    opener: str
    open: bool
    temperature: float
    """Of the answer; 0 for most."""


class Planner:
    """Draws prompt plans; the same number gives the same plan but for the passages, which the target writes."""

    def __init__(self, seed: int, given: Sequence[str] = (), words: Words | None = None) -> None:
        """`given` are the user's own prompts, `words` what prompts are seeded with beside the topics listed here."""
        self._seed = seed
        self._given = given
        self._words = words or Words()
        self._passages: deque[str] = deque(maxlen=MAX_PASSAGES)

    def plan(self, number: int) -> PromptPlan:
        """Return the plan of prompt `number`; the user's own prompts come first."""
        rng = random.Random(f"{self._seed}/{number}")
        temperature = 0.0 if rng.random() < GREEDY_SHARE else round(rng.uniform(0.7, 1.0), 2)
        system = rng.choice(SYSTEM_PROMPTS) if rng.random() < SYSTEM_SHARE else None
        if number < len(self._given):
            return PromptPlan(number, GIVEN, None, self._given[number], False, temperature)
        kind = rng.choices(KINDS, [kind.weight for kind in KINDS])[0]
        opener = rng.choice(kind.openers)
        if "{passage}" in opener and len(self._passages) < PASSAGES:
            kind = next(kind for kind in KINDS if kind.name == "article")
            opener = rng.choice(kind.openers)
        is_open = not opener or opener[-1].isspace()
        filled = self._fill(opener, rng) + (self._words.more(rng) if opener.endswith(" ") else "")
        return PromptPlan(number, kind.name, system, filled, is_open, temperature)

    def learn(self, kind: str, text: str) -> None:
        """Take an answer into the passages that later prompts are about."""
        least, most = PASSAGE_CHARACTERS
        if kind in ("article", "question", "how-to") and len(text) >= least:
            self._passages.append(whole_sentences(text[:most]))

    def _fill(self, opener: str, rng: random.Random) -> str:
        language, other = rng.sample(LANGUAGES, 2)
        passages = rng.sample(list(self._passages), PASSAGES) if "{passage}" in opener else ("",) * PASSAGES
        slots = {
            "{topic}": self._words.topic(rng) or rng.choice(TOPICS),
            "{thing}": self._words.thing(rng) or rng.choice(THINGS),
            "{language}": language,
            "{other}": other,
            "{code}": rng.choice(PROGRAMMING),
            "{number}": str(rng.choice((rng.randint(2, 12), rng.randint(10, 99), 10 * rng.randint(10, 99)))),
            "{passage}": passages[0],
            "{second}": passages[1],
            "{third}": passages[2],
            "{fourth}": passages[3],
        }
        while "{name}" in opener:
            opener = opener.replace("{name}", self._words.name(rng) or rng.choice(NAMES), 1)
        for slot, value in slots.items():
            opener = opener.replace(slot, value)
        return opener


def whole_sentences(text: str) -> str:
    """Return `text` up to its last sentence end, or all of it where it has none."""
    ends = [text.rfind(mark) for mark in (". ", ".\n", "! ", "? ")]
    end = max(ends)
    return text[: end + 1].strip() if end > 0 and not text.rstrip().endswith((".", "!", "?")) else text.strip()


def turn_prefix(tokenizer: Tokenizer, system: str | None, opener: str) -> list[int]:
    """Return the chat template's tokens up to and including a user turn that begins with `opener`.

    Raises `InvalidParameter` where the model has no chat template.
    """
    mark = "PROLEPSIS-TURN"
    whole = tokenizer.decode(tokenizer.apply_chat_template(chat(system, mark)), skip_special_tokens=False)
    before, _, _ = whole.partition(mark)
    return tokenizer.encode(before + opener.rstrip(" "), add_special_tokens=False)


def chat(system: str | None, user: str) -> list[dict[str, str]]:
    """Return the messages of a conversation's first question."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    return [*messages, {"role": "user", "content": user}]


def read_prompts(file: Path) -> list[str]:
    """Read the user's prompts: a JSON object with `prompt` on each line.

    Raises `ConfigError` naming the first line that is none.
    """
    prompts = []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{file} cannot be read as UTF-8 text: {error}", param="prompts") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            prompts.append(str(json.loads(line)["prompt"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{file}, line {number}: not a JSON object with 'prompt': {error!r}", param="prompts"
            ) from error
    return prompts
