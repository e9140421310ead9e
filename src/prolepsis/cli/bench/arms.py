"""Arms: ways for one engine to speculate, compared with one another."""

from collections.abc import Sequence
from dataclasses import dataclass

from prolepsis.cli.config import listed
from prolepsis.core.errors import ConfigError
from prolepsis.core.plan import SpecPlan

PLAIN, AUTO = "plain", "auto"


@dataclass(frozen=True, slots=True)
class Arm:
    """A named plan."""

    name: str
    plan: SpecPlan


def parse_arms(text: str, proposers: Sequence[str], num_speculative_tokens: int = 16) -> tuple[Arm, ...]:
    """Return the arms of a comma-separated list; `plain` comes first whether named or not, as the base of speedups.

    `plain` is no speculation, `auto` the engine's own decision over all its proposers, a proposer's name that proposer
    alone, and NAME@DEPTH drafts of exactly that many tokens where possible. Raises `ConfigError` for anything else.
    """
    names = listed(text)
    ordered = dict.fromkeys([PLAIN, *names])
    return tuple(_arm(name, i, proposers, num_speculative_tokens) for i, name in enumerate(ordered, 1))


def _arm(name: str, version: int, proposers: Sequence[str], ceiling: int) -> Arm:
    reason = f"bench arm {name}"
    if name == PLAIN:
        return Arm(name, SpecPlan(version, num_speculative_tokens=0, reason=reason))
    base, at, depth = name.partition("@")
    if base != AUTO and base not in proposers:
        allowed = ", ".join((PLAIN, AUTO, *proposers))
        raise ConfigError(
            f"arm {name!r} is unknown; allowed: {allowed}, each but plain also as NAME@DEPTH", param="arms"
        )
    if at and not (depth.isascii() and depth.isdigit() and int(depth) > 0):
        raise ConfigError(f"arm {name!r} has depth {depth!r}; allowed: 1 or more", param="arms")
    fixed = int(depth) if at else None
    chosen = None if base == AUTO else (base,)
    return Arm(name, SpecPlan(version, max(ceiling, fixed or 0), chosen, fixed, reason))
