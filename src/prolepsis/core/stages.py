"""Where the wall time of a request went: stages that add up to it, so that "why was it slow" has one answer."""

from dataclasses import dataclass
from typing import Literal, get_args

from prolepsis.core.ended import PromptEnded
from prolepsis.core.stats import RequestStats

Stage = Literal["receive", "queue", "prefill", "decode", "others", "client", "server"]
STAGES: tuple[Stage, ...] = get_args(Stage)


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """Wall seconds of one prompt's request, by stage; none is negative."""

    receive: float = 0.0
    """From its arrival until it asks for admission: its body is read, checked and tokenised, in its tenant's turn."""
    queue: float = 0.0
    """Waiting for admission, and in the engine until a pass has a row of it, also after a preemption."""
    prefill: float = 0.0  # its share of passes over its prompt (`engine.accounting`)
    decode: float = 0.0  # its share of the other passes, with drafts, verification and scheduling
    others: float = 0.0
    """In the engine meanwhile: shares of other requests in the same passes, and passes without it."""
    client: float = 0.0  # after the engine had ended: the client did not read what was there
    server: float = 0.0  # after the engine had ended: everything else until the answer was complete

    @property
    def total(self) -> float:
        return sum(self.by_stage().values())

    def by_stage(self) -> dict[Stage, float]:
        return {stage: getattr(self, stage) for stage in STAGES}


def stages_of(prompt: PromptEnded, arrived: float, ended_at: float) -> StageSeconds:
    """Return the stages of a prompt from the arrival of its HTTP request (0: unknown) to the end, by
    `time.monotonic`; they add up to that time.

    Where the engine reported no figures, what it took until the first token is prefill, and the rest decode.
    """
    asked_at = prompt.began_at - prompt.waited_s
    receive = max(0.0, asked_at - arrived) if arrived else 0.0
    left = max(0.0, ended_at - prompt.began_at)
    stats = prompt.stats if prompt.answer in ("complete", "cut") else None
    if stats is None and prompt.answer == "unreported":
        first = ended_at if prompt.first_token_at is None else prompt.first_token_at
        prefill = min(left, max(0.0, first - prompt.began_at))
        return StageSeconds(receive=receive, queue=prompt.waited_s, prefill=prefill, decode=left - prefill)
    in_engine = engine_stages(stats or RequestStats(), left)
    after = max(0.0, left - in_engine.total)  # never below 0 by rounding: counters take it
    client = min(after, prompt.stream_s)
    return StageSeconds(
        receive=receive,
        queue=prompt.waited_s + in_engine.queue,
        prefill=in_engine.prefill,
        decode=in_engine.decode,
        others=in_engine.others,
        client=client,
        server=after - client,
    )


def engine_stages(stats: RequestStats, most: float | None = None) -> StageSeconds:
    """Return the stages in the engine, which add up to `total_s`, or to `most` if it is less."""
    whole = max(0.0, stats.total_s if most is None else min(stats.total_s, most))
    queue = min(max(0.0, stats.queue_s), whole)
    busy, device = whole - queue, stats.device
    prefill, decode = device.prefill, device.total - device.prefill
    scale = min(1.0, busy / (prefill + decode)) if prefill + decode > 0.0 else 0.0  # a step ends after its requests
    prefill, decode = max(0.0, prefill * scale), max(0.0, decode * scale)
    return StageSeconds(queue=queue, prefill=prefill, decode=decode, others=max(0.0, busy - prefill - decode))
