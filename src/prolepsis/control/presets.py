"""Terms to begin with, by kind of use. Where a costly proposer cannot be expected to pay they name the free ones."""

from prolepsis.control.terms import GivenTerms, PresetName, Terms

_FREE = ("grammar", "prediction", "prompt_lookup", "suffix")

_FROM_TEXT = Terms(mode="on", proposers=_FREE, num_speculative_tokens=16)
"""Answers that repeat their prompt: what is copied is long, and finding it costs nothing."""

PRESETS: dict[PresetName, Terms] = {
    "chat": Terms(mode="on", num_speculative_tokens=8),
    "code": Terms(mode="on", num_speculative_tokens=16),
    "summarise": _FROM_TEXT,
    "retrieval": _FROM_TEXT,
    "tools": Terms(mode="on", num_speculative_tokens=16),
    "batch": Terms(mode="on", proposers=_FREE, num_speculative_tokens=4),
}


def in_full(given: GivenTerms) -> Terms:
    """Return the terms with preset and defaults filled in."""
    return given.over(PRESETS[given.use] if given.use else Terms())
