"""Measures at start how often a data plane picks another token with other rows and drafts in the pass."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prolepsis.adapters.vllm.data_plane import DataPlane

TEXTS = (
    "Question: Why is the sky blue?\nAnswer:",
    "The capital of France is Paris. The capital of Italy is",
    "def fibonacci(n):\n    ",
    "Dear Ms. Miller,\nthank you for your letter of 3 May. ",
    "Translate to German: The train leaves at noon.\n",
    "Once upon a time there was a king who had three daughters. The youngest",
    '{"name": "Ada", "born": 1815, "field": "',
    "First boil the water, then add the rice and",
)
NUM_TOKENS = 32
"""Compared of each text's answer, as far as there is room."""
NUM_DRAFT_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Agreement:
    """Greedy tokens computed together with other rows and drafts, against those computed alone."""

    num_tokens: int
    num_different: int

    def __str__(self) -> str:
        share = f"{self.num_different} of {self.num_tokens} greedy tokens"
        return f"self-check: {share} differ between a pass with other sequences and drafts and a pass of their own"


def check_rows(
    plane: DataPlane, encode: Callable[[str], Sequence[int]], max_sequences: int, max_model_len: int
) -> Agreement:
    """Answer `TEXTS` one by one without drafts, then all at once with those answers as drafts, and compare.

    In the second run each sequence goes on with the token of the first one, so that every position is compared. The
    plane holds no sequence before or after.
    """
    num_prompt = max(1, max_model_len - NUM_TOKENS)
    prompts = [list(encode(text))[:num_prompt] for text in TEXTS[:max_sequences]]
    room = min(NUM_TOKENS, max_model_len - num_prompt)
    answers = [_answer(plane, f"self-check alone {i}", prompt, room) for i, prompt in enumerate(prompts)]
    return Agreement(sum(map(len, answers)), _num_different(plane, prompts, answers))


def _answer(plane: DataPlane, key: str, prompt: Sequence[int], num_tokens: int) -> list[int]:
    plane.add(key, prompt, key)  # a salt of its own: nothing is reused
    answer: list[int] = []
    while len(answer) < num_tokens:
        computed = plane.compute({})
        picked = computed.logits.argmax(dim=-1).tolist()
        plane.finish({key: picked} if picked else {})
        answer += picked
    plane.remove([key])
    return answer


def _num_different(plane: DataPlane, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> int:
    rest: dict[str, list[int]] = {}
    """Of each answer the tokens that are still to be compared."""
    for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        key = f"self-check together {i}"
        plane.add(key, prompt, key)
        rest[key] = list(answer)
    num_different, decoding = 0, set[str]()
    while rest:
        sizes = {key: min(NUM_DRAFT_TOKENS, len(tokens) - 1) for key, tokens in rest.items() if key in decoding}
        computed = plane.compute({key: rest[key][:size] for key, size in sizes.items()})
        picked = iter(computed.logits.argmax(dim=-1).tolist())
        emitted = {row.key: rest[row.key][: 1 + row.num_draft_tokens] for row in computed.rows if row.samples_next}
        num_different += sum(token != next(picked) for tokens in emitted.values() for token in tokens)
        plane.finish(emitted)
        decoding |= emitted.keys()
        for key, tokens in emitted.items():
            del rest[key][: len(tokens)]
            if not rest[key]:
                del rest[key]
                plane.remove([key])
    return num_different
