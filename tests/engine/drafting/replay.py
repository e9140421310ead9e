"""Edits of standard-library source, and how many tokens a step a proposer brings to them."""

import difflib
import inspect
import json
import keyword
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType

from prolepsis.engine.drafting.proposer import Proposer
from prolepsis.engine.text.model_tokenizer import ModelTokenizer
from tests.engine.drafting.sequences import FakeSequence, accepted

PROMPT = (
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n{task}\n"
    "```python\n{source}```<|im_end|>\n<|im_start|>assistant\n"
)
_NEW = (
    ("if {a} is None:", '    raise ValueError("{b} was not given")'),
    ("# The {a} may have changed since the last call.", "{a} = self._checked({b})"),
    ("logger.debug('%s: %r', {b!r}, {a})",),
    ("for attempt in range({n}):", "    if self._try({a}, attempt):", "        break"),
)


def excerpt(module: ModuleType, first: int, num_lines: int = 90) -> str:
    """Return lines of a module of the standard library."""
    return "".join(inspect.getsource(module).splitlines(keepends=True)[first : first + num_lines])


def rename(source: str, draw: random.Random) -> str:
    """Give the three names that occur most often others."""
    names = Counter(name for name in re.findall(r"\b[a-z_]{3,}\b", source) if not keyword.iskeyword(name))
    for name, _ in [entry for entry in names.most_common(6) if entry[0] != "self"][:3]:
        new = draw.choice(["current_{}", "{}_value", "{}s", "my_{}"]).format(name.strip("_"))
        source = re.sub(rf"\b{name}\b", new, source)
    return source


_VALUES = ("None", "True", "False", "0", "1", "2", "str", "int", "len", "in", "not", "if")


def values(source: str, draw: random.Random) -> str:
    """Put other values and keywords, a token each, for a quarter of those that are there."""
    return re.sub(
        rf"\b({'|'.join(_VALUES)})\b", lambda found: draw.choice(_VALUES) if draw.random() < 0.25 else found[0], source
    )


def insert(source: str, draw: random.Random) -> str:
    """Put new lines behind every tenth line or so."""
    lines, words = source.splitlines(), re.findall(r"\b[a-z]{4,}\b", source)
    for place in range(draw.randrange(4, 9), len(lines), draw.randrange(8, 13)):
        indent = re.match(r" *", lines[place]).group()  # type: ignore[union-attr]
        fields = {"a": draw.choice(words), "b": draw.choice(words), "n": draw.randrange(2, 9)}
        lines[place] += "".join(f"\n{indent}{line.format(**fields)}" for line in draw.choice(_NEW))
    return "\n".join(lines) + "\n"


def delete(source: str, draw: random.Random) -> str:
    """Leave out one to three lines of every ten or so."""
    lines, place = source.splitlines(), 0
    while (place := place + draw.randrange(7, 13)) < len(lines):
        del lines[place : place + draw.randrange(1, 4)]
    return "\n".join(lines) + "\n"


def reindent(source: str, draw: random.Random) -> str:
    """Put all under a class."""
    return f"class Wrapped{draw.randrange(9)}:\n" + "".join(
        "    " + line if line.strip() else line for line in source.splitlines(keepends=True)
    )


def mixed(source: str, draw: random.Random) -> str:
    """Change some places: new lines, lines left out, and a name."""
    lines = source.splitlines(keepends=True)
    half = len(lines) // 3
    return (
        insert("".join(lines[:half]), draw)
        + "".join(lines[half : 2 * half - 2])
        + rename("".join(lines[2 * half :]), draw)
    )


def udiff(source: str, draw: random.Random) -> str:
    diff = difflib.unified_diff(source.splitlines(True), mixed(source, draw).splitlines(True), "a/code.py", "b/code.py")
    return "".join(diff)


def search_replace(source: str, draw: random.Random) -> str:
    old, new = source.splitlines(True), mixed(source, draw).splitlines(True)
    blocks = []
    for group in difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(2):
        _, i1, _, j1, _ = group[0]
        _, _, i2, _, j2 = group[-1]
        blocks.append(f"<<<<<<< SEARCH\n{''.join(old[i1:i2])}=======\n{''.join(new[j1:j2])}>>>>>>> REPLACE\n")
    return "\n".join(blocks)


def tool_call(source: str, draw: random.Random) -> str:
    call = {"name": "write_file", "arguments": {"path": "src/code.py", "content": mixed(source, draw)}}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


KINDS: dict[str, tuple[str, Callable[[str, random.Random], str]]] = {
    "rename": ("Rename three names.", rename),
    "values": ("Correct the values.", values),
    "insert": ("Add checks.", insert),
    "delete": ("Leave out what is not needed.", delete),
    "reindent": ("Put this into a class.", reindent),
    "udiff": ("Answer with a unified diff.", udiff),
    "search/replace": ("Answer with search and replace blocks.", search_replace),
    "tool call": ("Write the file with the tool.", tool_call),
}


def edit(kind: str, source: str, seed: int) -> tuple[str, str]:
    """Return prompt and answer."""
    task, change = KINDS[kind]
    answer = change(source, random.Random(seed))
    fence = {"udiff": "diff", "search/replace": "", "tool call": None}.get(kind, "python")
    return PROMPT.format(task=task, source=source), answer if fence is None else f"```{fence}\n{answer}```"


@dataclass(frozen=True, slots=True)
class Replay:
    """An edit as tokens: the answer is known, so no model is needed."""

    key: str
    prompt: list[int]
    answer: list[int]
    prediction: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: ModelTokenizer, key: str, texts: tuple[str, str], prediction: str) -> "Replay":
        prompt, answer, expected = (tokenizer.encode(text, add_special_tokens=False) for text in (*texts, prediction))
        return cls(key, prompt, answer, tuple(expected))

    def num_steps(self, proposer: Proposer, limit: int) -> int:
        """Return the steps of the answer: each commits what of the draft equals the answer, and one token more."""
        sequence, num_steps = FakeSequence([*self.prompt], len(self.prompt), self.key, prediction=self.prediction), 0
        while (done := len(sequence.tokens) - len(self.prompt)) < len(self.answer):
            draft = proposer.propose([sequence], [limit])[0]
            num_new = 1 + (len(accepted(draft, self.answer[done:])) if draft else 0)
            sequence.tokens += self.answer[done : done + num_new]
            num_steps += 1
        return num_steps


def tokens_a_step(replays: Sequence[Replay], make: Callable[[], Proposer], limit: int = 16) -> float:
    """Return the tokens that a step emits, over all replays, each with a proposer of its own."""
    return sum(len(each.answer) for each in replays) / sum(each.num_steps(make(), limit) for each in replays)
