"""Texts that the target continues itself, and how an early exit of it fares on them.

What an exit drafts behind accepted tokens is what it expects behind the committed ones, as their K/V are the same to
the bit: one pass over a text shows at every position whether the exit is right.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from prolepsis.core.requests import SamplingParams
from prolepsis.models.protocol import PAGE_SIZE, KVCache, SequenceInput, TargetModel, pack
from prolepsis.models.targets.early_exit import EarlyExit
from prolepsis.sampling.noise import gumbel, noise_key
from prolepsis.spec.proposers.candidates import CANDIDATES, rank
from prolepsis.spec.proposers.early_exit import SCRATCH_PAGES, EarlyExitProposer

MAX_DEPTH = 6
"""Tokens of the longest draft that is tried."""
_ROUNDS = 6


@dataclass(slots=True)
class Text:
    """A prompt and the target's continuation of it (a `spec.proposer.SampleView`)."""

    tokens: list[int]
    num_prompt_tokens: int
    pages: list[int]
    params: SamplingParams
    noise_key: int
    key: str = ""
    scope: str = ""
    traffic_class: str = ""
    prediction: Sequence[int] = ()
    matcher: None = None

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens


class Calibration:
    """The continued prompts, with their K/V in a cache of their own."""

    def __init__(self, model: TargetModel, prompts: Sequence[Sequence[int]], params: SamplingParams) -> None:
        """Continue each of `prompts` by `params.max_tokens` or to the end of sequence, at `params.temperature`."""
        self._model = model
        self._end = 0
        self.texts: list[Text] = []
        for i, prompt in enumerate(prompts):
            count = -(-(len(prompt) + params.max_tokens + MAX_DEPTH) // PAGE_SIZE)
            pages = list(range(self._end, self._end + count))
            self.texts.append(Text(list(prompt), len(prompt), pages, params, noise_key(params.seed, i)))
            self._end += count
        self._cache: KVCache = model.make_cache(self._end + SCRATCH_PAGES)
        self._continue(params.max_tokens)

    def right(self, early: EarlyExit) -> list[list[bool]]:
        """Say of every continued token whether the exit expects it."""
        return [self._right(early, text) for text in self.texts]

    def coverage(self, vocab_size: int) -> float:
        """Return the share of continued tokens below `vocab_size`."""
        tokens = [token for text in self.texts for token in text.tokens[text.num_prompt_tokens :]]
        return sum(token < vocab_size for token in tokens) / len(tokens)

    def time(self, exits: Sequence[EarlyExit]) -> tuple[list[float], list[float]]:
        """Return what a pass over 1, 2, ... tokens takes and what a level of each exit takes, in milliseconds.

        Each is the least of several rounds over all of them: what else runs on the machine only adds.
        """
        text = max(self.texts, key=lambda text: len(text.tokens))
        jobs: list[Callable[[], object]] = [partial(self._pass, text, count) for count in range(1, MAX_DEPTH + 2)]
        for early in exits:
            proposer = EarlyExitProposer(early, self._cache, first_page=self._end, max_samples=1)
            jobs.append(partial(proposer.propose, [text], [MAX_DEPTH]))
        rounds = [[_milliseconds(job) for job in jobs] for _ in range(_ROUNDS)]
        least = [min(values) for values in zip(*rounds, strict=True)]
        return least[: MAX_DEPTH + 1], [ms / MAX_DEPTH for ms in least[MAX_DEPTH + 1 :]]

    @torch.no_grad()
    def _continue(self, count: int) -> None:
        """Let the target continue the prompts, all at once."""
        for text in self.texts:
            if text.num_prompt_tokens > 1:
                self._model.forward(pack([SequenceInput(text.tokens[:-1], 0, text.pages, keep_last=0)]), self._cache)
        growing = self.texts
        for _ in range(count):
            last = [SequenceInput(text.tokens[-1:], len(text.tokens) - 1, text.pages) for text in growing]
            for text, logits in zip(growing, self._model.forward(pack(last), self._cache), strict=True):
                text.tokens.append(_pick(text, logits))
            growing = [text for text in growing if text.tokens[-1] not in self._model.info.eos_token_ids]
            if not growing:
                return

    def _right(self, early: EarlyExit, text: Text) -> list[bool]:
        first, count = text.num_prompt_tokens, text.num_output_tokens
        batch = pack([SequenceInput(text.tokens[first - 1 : -1], first - 1, text.pages, keep_last=count)])
        tokens, logprobs = early.likeliest(batch, self._cache, CANDIDATES)
        guesses = [rank(text, i - count, tokens[i], logprobs[i])[0][0] for i in range(count)]
        return [guess == token for guess, token in zip(guesses, text.tokens[first:], strict=True)]

    @torch.no_grad()
    def _pass(self, text: Text, count: int) -> None:
        """Run a pass as one that verifies a draft, over slots that nobody reads again."""
        tokens, start = text.tokens[-1:] * count, len(text.tokens) - 1
        self._model.forward(pack([SequenceInput(tokens, start, text.pages, keep_last=count)]), self._cache)


def _pick(text: Text, logits: Tensor) -> int:
    """Return the target's keyed sample of what follows, temperature only."""
    if text.params.greedy:
        return int(logits.argmax())
    noise = gumbel(text.noise_key, text.num_output_tokens, torch.arange(len(logits)))
    return int((logits.cpu().double() / text.params.temperature + noise).argmax())


def _milliseconds(job: Callable[[], object]) -> float:
    start = time.perf_counter()
    job()
    return 1000.0 * (time.perf_counter() - start)
