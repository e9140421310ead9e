"""The verdict of a check: what drafts bring to each traffic class at each load, and whether a pilot is worth it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

from prolepsis.core.facts import DOMAIN, MEDIUM, SHORT
from prolepsis.core.terminal.output import FAILED, OK, UNPROVEN
from prolepsis.core.traffic_sums import LEAST_REQUESTS, Interval, RatioSums, ratio

ALL = "all"
"""All traffic classes together."""
LEAST = 5
"""Comparisons below which nothing is known, however alike they are."""
WORTH = 1.1  # a smaller gain is not worth a pilot
_T = (2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09)
"""Half an interval of 95 %, in standard errors, of 5 comparisons and more (Student); the last one for all above 19."""
_CONTEXTS = {"short": {"max": SHORT}, "medium": {"min": SHORT + 1, "max": MEDIUM}, "long": {"min": MEDIUM + 1}}
Word = Literal["go", "do not", "not known yet"]
STATUSES: Mapping[Word, int] = {"go": OK, "do not": FAILED, "not known yet": UNPROVEN}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerComparison:
    """Requests answered plainly and speculated, one or some at once."""

    traffic_class: str
    at_once: int
    unit: str  # names their prompts: comparisons of the same prompts are one piece of evidence
    num_tokens: int
    num_steps: int
    plain_s: float
    speculated_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What drafts bring to a traffic class at a load; tokens a second are those of all requests at once."""

    traffic_class: str
    at_once: int
    num_requests: int
    num_comparisons: int
    plain_tokens_per_second: float
    speculated_tokens_per_second: float
    tokens_a_pass: float | None
    ratio: Interval
    answer: Literal["worth it", "not", "not known"]

    @property
    def num_needed(self) -> int:
        """Comparisons like these that would tell whether it is 1, or worth it."""
        found, least = self.ratio, max(LEAST, self.num_comparisons + 1)
        if found.estimate is None or found.lower is None:
            return least
        distance = max(abs(found.estimate - 1.0), WORTH - found.estimate)
        return max(least, ceil(self.num_comparisons * ((found.estimate - found.lower) / distance) ** 2))

    @property
    def bounded(self) -> str:
        low, high = self.ratio.lower, self.ratio.upper
        return f"{self.ratio.estimate:.2f}x" + (f", {low:.2f} to {high:.2f}" if low is not None else "")

    def __str__(self) -> str:
        return f"{self.traffic_class} ({self.bounded}, {self.at_once} at once)"

    @property
    def cells(self) -> list[str]:
        """The row of a table."""
        speeds = (self.plain_tokens_per_second, self.speculated_tokens_per_second, self.tokens_a_pass or 0.0)
        numbers = (str(self.at_once), str(self.num_requests), *(f"{speed:.3g}" for speed in speeds))
        return [self.traffic_class, *numbers, self.bounded, self.answer]


def gains(comparisons: Sequence[AnswerComparison]) -> Iterator[Gain]:
    """Yield what drafts bring by traffic class and load; where there are several classes, of all together at last."""
    classes = [*dict.fromkeys(each.traffic_class for each in comparisons)]
    for name in [*classes, ALL] if len(classes) > 1 else classes:
        for load in sorted({each.at_once for each in comparisons}):
            of_load = [each for each in comparisons if each.at_once == load]
            if own := [each for each in of_load if name in (each.traffic_class, ALL)]:
                yield _gain(name, own)


def _gain(name: str, own: Sequence[AnswerComparison]) -> Gain:
    units: dict[tuple[str, str], tuple[float, float]] = {}
    for each in own:
        plain_s, speculated_s = units.get(key := (each.traffic_class, each.unit), (0.0, 0.0))
        units[key] = (plain_s + each.plain_s, speculated_s + each.speculated_s)
    found, num_tokens = ratio_of([*units.values()]), sum(each.num_tokens for each in own)
    tokens_a_pass = ratio(num_tokens, sum(each.num_steps for each in own))
    return Gain(
        traffic_class=name,
        at_once=own[0].at_once,
        num_requests=sum(each.at_once for each in own),
        num_comparisons=len(units),
        plain_tokens_per_second=num_tokens / sum(each.plain_s for each in own),
        speculated_tokens_per_second=num_tokens / sum(each.speculated_s for each in own),
        tokens_a_pass=tokens_a_pass,
        ratio=found,
        answer=judged(found, len(units), tokens_a_pass or 1.0),
    )


def ratio_of(pairs: Sequence[tuple[float, float]]) -> Interval:
    """Return the ratio of two sums, as `RatioSums`, with bounds from 5 pairs on, by Student."""
    sums = RatioSums()
    for x, n in pairs:
        sums.add(x, n)
    share = sums.x / sums.n
    if sums.number < LEAST:
        return Interval(share)
    spread = _T[min(sums.number - LEAST, len(_T) - 1)] * sums.standard_error
    return Interval(share, max(0.0, share - spread), share + spread)


def judged(found: Interval, number: int, tokens_a_pass: float) -> Literal["worth it", "not", "not known"]:
    """Return whether a gain is worth it: known by 20 comparisons, or by 5 whose interval leaves out 1.

    Fewer passes are all that drafts can bring: a gain above the tokens of a pass is the machine's, not theirs.
    """
    if found.estimate is None or found.lower is None or found.upper is None:
        return "not known"
    if found.lower > 1.0 and min(found.estimate, tokens_a_pass) >= WORTH:
        return "worth it"
    is_known = number >= LEAST_REQUESTS or found.upper < 1.0
    return "not" if is_known and found.upper < WORTH else "not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSoFar:
    """What a check knows so far."""

    gains: Sequence[Gain] = ()
    num_compared: int = 0  # answers
    num_different: int = 0
    num_prompts: Mapping[str, int] | None = None  # by traffic class, once they are read
    minutes: float = 3.0
    is_own: bool = True  # the prompts are the user's
    faults: Sequence[str] = ()  # checks that must pass, and fail

    @property
    def deciding(self) -> Sequence[Gain]:
        """What the verdict is about: all classes together only once each of them was compared."""
        is_whole = {gain.traffic_class for gain in self.gains} >= {*(self.num_prompts or ())}
        return [gain for gain in self.gains if is_whole or gain.traffic_class != ALL]

    @property
    def word(self) -> Word:
        if self.num_different:
            return "do not"
        if any(gain.answer == "worth it" for gain in self.deciding):
            return "go"
        alone = {gain.answer for gain in self.gains if gain.traffic_class != ALL and gain.at_once == 1}
        return "do not" if alone == {"not"} else "not known yet"

    @property
    def named(self) -> Sequence[Gain]:
        """What decides: traffic classes that are worth it, or are not; all together only where no class is."""
        rows = [gain for gain in self.deciding if gain.answer == ("worth it" if self.word == "go" else "not")]
        return [row for row in rows if row.traffic_class != ALL] or rows

    @property
    def sentence(self) -> str:
        """The last line of a check."""
        if self.num_different:
            found = f"{self.num_different} of {self.num_compared} answers differ from plain decoding"
        elif self.word == "not known yet":
            found = f"needs {self._needs()}"
        else:
            before = "speculation is worth a pilot on" if self.word == "go" else "drafts bring too little to"
            found = f"{before} {', '.join(map(str, self.named))}"
        shipped = "; these are the shipped prompts: check your own"
        next_act = "; `prolepsis pilot start` begins it" if self.word == "go" else ""
        faults = "".join(f"; first mend {fault}" for fault in self.faults)
        return f"{self.word}: {found}{next_act if self.is_own else shipped}{faults}"

    def _needs(self) -> str:
        if self.num_prompts == {}:
            return "prompts with texts that fit the model's context; a trace has none"
        if not (unknown := [gain for gain in self.deciding if gain.answer == "not known"]):
            return f"time for a first comparison: --minutes {2 * ceil(self.minutes)}"
        best, sizes = (
            max(unknown, key=lambda gain: (gain.at_once == 1, gain.ratio.estimate or 0.0)),
            self.num_prompts or {},
        )
        prompts = sizes.get(best.traffic_class, sum(sizes.values()))
        if (needed := best.num_needed * best.at_once) > prompts:
            return f"some {needed} prompts of {best}; here are {prompts}"
        classes = {gain.traffic_class for gain in self.gains} - {ALL}
        waiting = max(1.0, len(sizes) / len(classes))  # classes whose turn has not come take their part of the time too
        minutes = ceil(self.minutes * waiting * best.num_needed / best.num_comparisons)
        return f"--minutes {max(minutes, ceil(self.minutes) + 1)} for {best}"

    def pilot(self) -> list[dict[str, object]]:
        """Return rules of a policy for what is worth it: name, match, and the loads at which it is."""
        loads: dict[str, list[int]] = {}
        for gain in self.named if self.word == "go" else ():
            loads.setdefault(gain.traffic_class, []).append(gain.at_once)
        return [{"name": name, "match": match_of(name), "at_once": found} for name, found in loads.items()]


def match_of(traffic_class: str) -> Mapping[str, object]:
    """Return the conditions of a policy's rule for a category, or for the name of a traffic class (`core.facts`)."""
    parts = traffic_class.split("/")
    if len(parts) < 4:
        return {"route": "/v1/chat/completions"} | ({} if traffic_class == ALL else {DOMAIN: traffic_class})
    route, tier, form, context = parts[:4]
    free = {"tools": False, "structured_output": "none"} if form == "free" else {}
    return {"route": f"/v1/{route.replace('-', '/', 1)}", "tier": tier, "prompt_tokens": _CONTEXTS[context], **free}
