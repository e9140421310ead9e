"""Drafts that are right as often as one asks: what an engine and a machine make of 70 % before there is a head.

What was answered before is answered the same again, if it is greedy or has its seed. A draft is what follows in that
answer, with wrong tokens planted, and verified as all are: answers stay the target's. All else is decoded plainly.
"""

import random
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

import structlog

from prolepsis.core.config import SYNTHETIC
from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.proposer import Proposer, SequenceView

log = structlog.get_logger(__name__)

MOST_ANSWERS = 4096  # that are remembered: the newest


class SyntheticProposer(Proposer):
    """Proposes chains whose token at each place is right with a given chance, if those before it are.

    Answers are remembered by tenant, in all of its cache salts: an arm of `bench` knows what the plain one said.
    """

    name = SYNTHETIC
    free = True

    def __init__(self, rates: Sequence[float]) -> None:
        """`rates`: the chance of each place of a draft; one is for all."""
        log.warning("drafts_are_synthetic", rates=list(rates), reason="figures here are those of no real proposer")
        self._rates = tuple(rates)
        self._chance = random.Random(0)
        self._answers: dict[tuple[object, ...], Sequence[int]] = {}

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        return [self._draft(sequence, limit) for sequence, limit in zip(sequences, limits, strict=True)]

    def forget(self, sequence: SequenceView) -> None:
        """Remember its answer, unless a longer one that begins so is known."""
        question, answer = _question(sequence), sequence.tokens[sequence.num_prompt_tokens :]
        known = self._answers.pop(question, ())
        self._answers[question] = known if known[: len(answer)] == answer else answer
        if len(self._answers) > MOST_ANSWERS:
            del self._answers[next(iter(self._answers))]

    def _draft(self, sequence: SequenceView, limit: int) -> Draft | None:
        said = sequence.tokens[sequence.num_prompt_tokens :]
        answer = self._answers.get(_question(sequence), ())
        rates = self._rates[:limit] if len(self._rates) > 1 else self._rates * limit
        tokens = list(answer[len(said) : len(said) + len(rates)])
        if not tokens or answer[: len(said)] != said:
            return None
        wrong = next((i for i in range(len(tokens)) if self._chance.random() >= rates[i]), None)
        if wrong is not None:
            tokens[wrong] = tokens[wrong] - 1 if tokens[wrong] else 1
        return chain(tuple(tokens), self.name, tuple(accumulate(rates[: len(tokens)], mul)))


def _question(sequence: SequenceView) -> tuple[object, ...]:
    """Return what an answer depends on; what is not here, such as penalties, shows by its tokens."""
    return sequence.tenant, sequence.params.greedy or sequence.noise_key, *sequence.tokens[: sequence.num_prompt_tokens]
