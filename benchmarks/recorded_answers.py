"""Answers of a target with its hidden states, recorded once and replayed by `benchmarks.given_costs`."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor

from prolepsis.core.config import EngineConfig
from prolepsis.core.events import Tokens
from prolepsis.core.messages import Submit
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.engine.build import assemble
from prolepsis.engine.models.load import LoadedModel
from prolepsis.training.synthesis import FeatureRecorder, plain

LENGTH = 2048
"""Longest sequence."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What the target says to a prompt, and its hidden states of every token but the last."""

    prompt: tuple[int, ...]
    params: SamplingParams
    tokens: tuple[int, ...]
    features: Tensor  # [tokens computed, aux_layers * hidden] bfloat16; no columns without a head
    lane: int = 0
    """Requests of a lane are served one after another, where a run has lanes."""


class Recorder:
    """Records the answers of a model to prompts by temperature, and keeps them in `file`, if there is one."""

    def __init__(
        self,
        config: EngineConfig,
        loaded: LoadedModel,
        aux_layers: tuple[int, ...],
        prompts: Sequence[tuple[int, ...]],
        *,
        num_tokens: int,
        file: Path | None = None,
    ) -> None:
        self._config = config
        self._loaded = loaded
        self._aux_layers = aux_layers
        self._prompts = prompts
        self._num_tokens = num_tokens
        self._file = file
        self._kept: dict[str, list[tuple[tuple[int, ...], Tensor]]] = {}
        if file is not None and file.exists():
            self._kept = torch.load(file, weights_only=True)

    def answers(self, temperature: float) -> list[Recording]:
        """Return an answer to each prompt."""
        params = [self._params(temperature, seed) for seed in range(len(self._prompts))]
        given = repr((self._loaded.identity, self._aux_layers, self._prompts, params))
        key = blake2b(given.encode(), digest_size=16).hexdigest()
        if key not in self._kept:
            self._kept[key] = self._record(params)
            if self._file is not None:
                torch.save(self._kept, self._file)
        return [
            Recording(prompt, each, tuple(tokens), features)
            for prompt, each, (tokens, features) in zip(self._prompts, params, self._kept[key], strict=True)
        ]

    def _params(self, temperature: float, seed: int) -> SamplingParams:
        top_p = 0.95 if temperature else 1.0
        return SamplingParams(
            temperature=temperature, top_p=top_p, seed=seed, max_tokens=self._num_tokens, ignore_eos=True
        )

    def _record(self, params: Sequence[SamplingParams]) -> list[tuple[tuple[int, ...], Tensor]]:
        recorder = FeatureRecorder(self._aux_layers)
        consumers = [recorder] if self._aux_layers else []
        engine = assemble(plain(self._config, LENGTH), self._loaded, consumers=consumers)
        answers: list[tuple[tuple[int, ...], Tensor]] = []
        for i, (prompt, each) in enumerate(zip(self._prompts, params, strict=True)):
            recorder.watch(f"{i}/0")
            engine.send(Submit(GenerateRequest(str(i), prompt, each), engine.clock()))
            tokens: list[int] = []
            while engine.has_work:
                for event in engine.step():
                    tokens += event.token_ids if isinstance(event, Tokens) else ()
            num_computed = len(prompt) + len(tokens) - 1
            features = recorder.collect(f"{i}/0") if self._aux_layers else torch.zeros(num_computed, 0)
            answers.append((tuple(tokens), features))
        return answers


def mixed(recordings: Sequence[Recording], at_once: int, chance: random.Random) -> list[Recording]:
    """Return recordings in lanes, one for each request at once: the first repeats an answer, the others say nonsense.

    The repeated answer stands in the prompt; nonsense is the tokens of all answers in random order.
    """
    said = [token for each in recordings for token in each.tokens]
    chance.shuffle(said)
    size = len(recordings[0].tokens)
    mix: list[Recording] = []
    for i, each in enumerate(recordings):
        lane = i % at_once
        if lane:
            tokens = tuple(said[i * size : (i + 1) * size])
            mix.append(replace(each, tokens=tokens, lane=lane))
        else:
            answered = each.features[len(each.prompt) :]
            features = torch.cat([each.features, each.features[-1:], answered])
            mix.append(replace(each, prompt=each.prompt + each.tokens, features=features))
    return mix
