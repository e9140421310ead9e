"""A caller's own wish held against the terms of the rule: who wins, field by field."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from prolepsis.control.shares import position
from prolepsis.control.terms import Emit, Mode, Terms

WishedMode = Literal["auto", "off", "on", "shadow"]
Source = Literal["policy", "caller", "shadow_percentage"]


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request asks of speculation, and may ask by its roles."""

    mode: WishedMode = "auto"
    """auto: as the policy says; on: verify every draft, whether or not it pays."""
    max_depth: int | None = None
    proposer: str | None = None
    emit: Emit | None = None


NO_WISH = Wish()


@dataclass(frozen=True, slots=True)
class Conflict:
    """A wish that the policy does not let pass: it is refused by name, never ignored."""

    param: str
    message: str


@dataclass(frozen=True, slots=True)
class InEffect:
    """What one request gets."""

    mode: Mode
    forced: bool
    """Drafts are verified whether or not that pays."""
    proposers: tuple[str, ...] | None
    num_speculative_tokens: int | None
    emit: Emit
    sources: Mapping[str, Source] = field(default_factory=dict)
    """Who decided each field."""


def conflict(rule: str, terms: Terms, wish: Wish) -> Conflict | None:
    """Return the first wish that contradicts the terms of `rule`, None where none does."""
    if terms.pinned:
        modes = ("auto",) if terms.mode == "on" else ("auto", terms.mode)
        pinned = f"the policy's rule {rule!r} pins it to {terms.mode}"
        if wish.mode not in modes:
            return Conflict("speculation.mode", f"speculation.mode is {wish.mode!r}, but {pinned}")
        if wish.max_depth == 0 and terms.mode != "off":
            return Conflict("speculation.max_depth", f"speculation.max_depth is 0, which turns it off, but {pinned}")
        if wish.emit not in (None, terms.emit):
            message = f"speculation.emit is {wish.emit!r}, but the policy's rule {rule!r} pins it to {terms.emit!r}"
            return Conflict("speculation.emit", message)
    if wish.proposer is not None and terms.proposers is not None and wish.proposer not in terms.proposers:
        allowed = ", ".join(terms.proposers) or "none"
        message = f"speculation.proposer is {wish.proposer!r}; allowed by the policy's rule {rule!r}: {allowed}"
        return Conflict("speculation.proposer", message)
    return None


def in_effect(rule: str, terms: Terms, wish: Wish, targeting_key: str | None = None) -> InEffect:
    """Return what a request gets whose wish has no `conflict` with the terms.

    Mode: `off` is any caller's to ask, `on` and `shadow` an operator's; `auto` leaves it to the policy. Proposers and
    ceiling bound what is asked: a caller narrows them, nobody widens them. Emit: the caller's where one is given.
    `targeting_key` draws the share that drafts in shadow; without one every request does.
    """
    mode, decided = _mode(rule, terms, wish, targeting_key)
    ceiling, depth = terms.num_speculative_tokens, wish.max_depth
    narrower = depth is not None and (ceiling is None or depth < ceiling)
    return InEffect(
        mode=mode,
        forced=wish.mode == "on" and mode == "on",
        proposers=terms.proposers if wish.proposer is None else (wish.proposer,),
        num_speculative_tokens=depth if narrower else ceiling,
        emit=wish.emit or terms.emit,
        sources={
            "mode": decided,
            "proposers": "policy" if wish.proposer is None else "caller",
            "num_speculative_tokens": "caller" if narrower else "policy",
            "emit": "policy" if wish.emit is None else "caller",
        },
    )


def _mode(rule: str, terms: Terms, wish: Wish, targeting_key: str | None) -> tuple[Mode, Source]:
    asked = terms.mode if wish.mode == "auto" else wish.mode
    if wish.max_depth == 0 and asked != "off":
        return "off", "caller"
    if wish.mode != "auto":
        return asked, "caller"
    if (
        terms.mode == "shadow"
        and targeting_key is not None
        and position(rule, targeting_key) >= terms.shadow_percentage
    ):
        return "off", "shadow_percentage"
    return terms.mode, "policy"
