"""Charges the time of a step to its requests: all of it, by what each row used.

With S rows in the pass, N tokens, C cached tokens and the measured cost curve T(tokens, cached tokens), a row is worth

    T(S, 0) / S                                         weights are read once for all: an equal part of one token each
    + (T(S, C) - T(S, 0)) * its cached tokens / C       keys and values it reads
    + (T(N, C) - T(S, C)) * its further tokens / (N-S)  tokens of prompt or draft beyond its first

and pays that share of the pass as it was measured, so the curve decides how time is split and never how much there is.
Of a row that decodes the first two lines are `plain`, the third is `verify`; all of the others is `prefill`. Making
drafts is paid in equal parts by the rows that proposers were asked for, what proposers learn by the requests that may
speculate, the rest of the step by all rows.

`predicted_plain`: a row that emits k tokens had taken k plain steps, each its `plain` and `host` of this one.
"""

from collections.abc import Sequence

from prolepsis.core.device_seconds import DeviceSeconds
from prolepsis.core.stats import PlainReason
from prolepsis.engine.rows import Row
from prolepsis.engine.timings import StepTiming
from prolepsis.spec.cost import CostCurve

_NOT_ASKED: frozenset[PlainReason] = frozenset({"too_costly", "resting", "breaker_open", "put_off", "no_room"})


def charge(rows: Sequence[Row], timing: StepTiming, cost: CostCurve) -> None:
    """Add each row's part of a step that was just committed to its request; the parts add up to `timing.total`.

    Less than 0.01 ms for one row, less than 0.04 for 32 (`benchmarks.charging_cost`).
    """
    num_samples = len(rows)
    num_context = num_tokens = 0
    asked: list[DeviceSeconds] = []
    learning: list[DeviceSeconds] = []
    for row in rows:
        num_context += row.start
        num_tokens += row.num_tokens
        request = row.sample.request
        if request.source.speculation.enabled:
            learning.append(request.stats.device)
        draft, plain = row.draft, row.plain
        if draft is not None:
            num_tokens += len(draft.tokens)
        elif row.shadow is None and (plain is None or plain in _NOT_ASKED):
            continue
        asked.append(request.stats.device)
    everyone = learning or [row.sample.request.stats.device for row in rows]
    _share(asked or everyone, timing.propose)
    _share(everyone, timing.learn)
    seconds = timing.forward + timing.verify
    equal, by_context, by_token = _split(cost, num_samples, num_tokens, num_context)
    scale = seconds / (equal + by_context + by_token) if seconds else 0.0
    equal *= scale / num_samples
    by_context *= scale / (num_context or 1)
    by_token *= scale / ((num_tokens - num_samples) or 1)
    host = (timing.schedule + timing.commit) / num_samples
    for row in rows:
        sample, start, num_new = row.sample, row.start, row.num_tokens
        device = sample.request.stats.device
        device.host += host
        first = equal + by_context * start
        if num_new > 1 or start < sample.num_prompt_tokens:
            first += by_token * (row.num_rows - 1)
            device.prefill += first
            device.predicted_plain += first + host
            continue
        device.plain += first
        if row.draft is not None:
            device.verify += by_token * len(row.draft.tokens)
        device.predicted_plain += (len(sample.tokens) - start - 1) * (first + host)


def _split(cost: CostCurve, num_samples: int, num_tokens: int, num_context: int) -> tuple[float, float, float]:
    """Return the milliseconds of the three lines above; never negative, and more than 0 together.

    Tables of the curve are renewed one by one, so two readings may be of different corrections.
    """
    alone = cost.about(num_samples, 0)
    plain = max(alone, cost.about(num_samples, num_context)) if num_context else alone
    whole = max(plain, cost.about(num_tokens, num_context)) if num_tokens > num_samples else plain
    return max(alone, 1e-9), plain - alone, whole - plain


def _share(payers: Sequence[DeviceSeconds], seconds: float) -> None:
    part = seconds / len(payers)
    for device in payers:
        device.propose += part
