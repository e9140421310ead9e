"""Device time of requests to a code model: edits, which repeat their prompt, among questions, with heavy tails.

A prompt token takes 2.7 ms and an output token 27 ms, as Qwen2.5-Coder-1.5B takes on two cores. An edit repeats much of
its prompt, and takes from one to ten tokens a step; other answers get no drafts, and pay a little for looking. Time
per output token has heavy tails: a long prompt before a short answer takes many times the mean.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from prolepsis.control.cost.meter import Experiment, RequestCost
from prolepsis.core.stats import DeviceSeconds

PROMPT_S, OUTPUT_S = 0.0027, 0.027
_EDITS = 0.45
_EDITS_S, _OTHERS_S = 0.559, 0.240
"""Parts of all device seconds that decode edits and other answers, by the laws below; prompts take the rest."""
_TO_LOOK = 0.02
"""What looking for drafts adds to decoding other answers."""


@dataclass(frozen=True, slots=True)
class EditTraffic:
    """What speculation changes; `saving` is the share of all device seconds that it takes away."""

    saving: float = 0.25
    """At most 0.27, or below 0 where drafts cost more."""
    noise: float = 0.25
    """Deviation of the logarithm of a request's device time."""
    outliers: float = 0.01
    """Share of requests that take four times their time."""
    share: float = 0.5

    def requests(self, seed: int) -> Iterator[RequestCost]:
        """Yield requests without end."""
        draw, experiment = random.Random(seed), Experiment("edits@1", run=1, stage=0, share=self.share)
        while True:
            yield self._request(draw, experiment)

    def _request(self, draw: random.Random, experiment: Experiment) -> RequestCost:
        is_edit, on_canary = draw.random() < _EDITS, draw.random() < experiment.share
        prompt = max(20, round(draw.lognormvariate(6.2, 0.8)))
        output = round(prompt * draw.uniform(0.3, 1.0)) if is_edit else round(draw.lognormvariate(4.5, 1.0))
        output = min(1500, max(4, output))
        slower = draw.lognormvariate(0.0, self.noise) * (4.0 if draw.random() < self.outliers else 1.0)
        prefill, plain = slower * PROMPT_S * prompt, slower * OUTPUT_S * output
        device = DeviceSeconds(prefill=prefill, plain=plain, predicted_plain=prefill + plain)
        if on_canary:
            saved_of_edits = draw.uniform(0.0, 2.0) * (self.saving + _TO_LOOK * _OTHERS_S) / _EDITS_S
            device.plain = plain * (1.0 - saved_of_edits if is_edit else 1.0 + _TO_LOOK)
        return RequestCost(
            route="/v1/chat/completions",
            tenant="acme",
            proposer="suffix" if on_canary and is_edit else "none",
            num_output_tokens=output,
            num_computed_tokens=prompt,
            device=device,
            experiment=experiment,
            arm="canary" if on_canary else "control",
        )
