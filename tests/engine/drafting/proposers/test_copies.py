import json
from collections.abc import Sequence

import pytest

from prolepsis.engine.drafting.proposers.copies import Copies
from prolepsis.engine.drafting.proposers.suffix import SuffixProposer
from tests.engine.drafting.sequences import FakeSequence, accepted

SOURCE = """def first(values):
    for value in values:
        if value is not None:
            return value
    raise ValueError("no value")
"""
REINDENTED = "class A:\n" + "".join("    " + line for line in SOURCE.splitlines(keepends=True))
HUNK = "@@ -1,5 +1,5 @@\n" + "".join(" " + line for line in SOURCE.splitlines(keepends=True))
ESCAPED = f'{{"content": {json.dumps(SOURCE)}}}'


class Characters:
    """A tokenizer whose tokens are a line's indent or mark with its first word, so that these change with either."""

    def __init__(self) -> None:
        self.known: list[str] = []
        self.num_encoded = 0

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.num_encoded += len(text)
        tokens = []
        for line in text.splitlines(keepends=True):
            words = line.split(" ")
            first = next((i for i, word in enumerate(words) if word), 0)
            for word in [" ".join(words[: first + 1]), *words[first + 1 :]]:
                if word not in self.known:
                    self.known.append(word)
                tokens.append(self.known.index(word))
        return tokens

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        text = ""
        for token in token_ids:
            word = self.known[token]
            text += word if not text or text.endswith("\n") else " " + word
        return text


def num_steps(answer: str, codec: Characters | None) -> int:
    words = codec or Characters()
    prompt, tokens, steps = words.encode(SOURCE), words.encode(answer), 0
    sequence = FakeSequence([*prompt], len(prompt))
    proposer = SuffixProposer(1 << 16, codec)
    while (done := len(sequence.tokens) - len(prompt)) < len(tokens):
        (draft,) = proposer.propose([sequence], [8])
        num_new = 1 + (len(accepted(draft, tokens[done:])) if draft else 0)
        sequence.tokens += tokens[done : done + num_new]
        steps += 1
    return steps


@pytest.mark.parametrize("answer", [REINDENTED, HUNK], ids=["reindented", "hunk"])
def test_a_form_that_the_answer_shows_is_copied(answer: str) -> None:
    assert num_steps(answer, Characters()) <= 0.8 * num_steps(answer, None)


@pytest.mark.parametrize(
    ("answer", "rendered"),
    [
        (REINDENTED, ["    def first(values):\n        for value in values:\n"]),
        (HUNK, [" def first(values):\n", "-def first(values):\n", "+def first(values):\n"]),
        (ESCAPED[:60], ["    for value in values:\\n        if value is not None:\\n"]),
    ],
    ids=["reindented", "hunk", "escaped"],
)
def test_the_form_is_told_by_the_text(answer: str, rendered: list[str]) -> None:
    codec = Characters()
    prompt, output = codec.encode(SOURCE), codec.encode(answer)
    copies = Copies(codec, prompt)
    copies.follow([*prompt, *output], len(prompt))
    made = [codec.decode(piece) for piece in iter(copies.due, [])]
    for text in rendered:
        assert any(text in piece for piece in made)
    assert len(made) <= 3


def test_an_answer_in_the_form_of_the_prompt_makes_no_copies() -> None:
    codec = Characters()
    prompt, output = codec.encode(SOURCE), codec.encode(SOURCE)
    copies = Copies(codec, prompt)
    copies.follow([*prompt, *output], len(prompt))
    assert copies.due() == []


def test_a_long_prompt_is_copied_a_piece_a_step_from_the_line_on_that_the_answer_wrote() -> None:
    codec = Characters()
    lines = [f"    return the_value_{i} of_many\n" for i in range(2000)]
    prompt = codec.encode("".join(lines))
    output = codec.encode("x\n    " + lines[1000] + "        next")
    copies = Copies(codec, prompt)
    codec.num_encoded = 0
    copies.follow([*prompt, *output], len(prompt))
    assert codec.num_encoded == 0, "looking encodes nothing"
    first = codec.decode(copies.due())
    assert first.startswith("    " + lines[1000])
    assert 0 < codec.num_encoded < 4000
    pieces = 1
    while copies.due():
        pieces += 1
    assert 40 < pieces < 120
