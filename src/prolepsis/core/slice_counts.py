"""How one proposer fares with the requests of one slice, as the engine counts it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SliceCounts:
    """Counts since the engine started; they only grow, but for those in a row."""

    proposer: str
    slice: str
    num_asked: int = 0
    """Samples it was asked for, step by step."""
    num_judged: int = 0
    """Drafts whose first token is known to be right or wrong, whether or not they were verified."""
    num_right: int = 0
    """Of these, those that were right."""
    num_estimated: int = 0
    """Of the judged ones, those for which the proposer had an estimate of its own."""
    overestimated: float = 0.0
    """Of these, the sum of the estimates less the number that were right."""
    num_rounds: int = 0
    """Verified drafts that had tokens of it."""
    spent: float = 0.0
    """What drafting and verifying took, in tokens that plain decoding emits in that time."""
    gained: float = 0.0
    """Tokens of it that were accepted."""
    gained_squared: float = 0.0
    """Sum over rounds of the square of what each gained."""
    num_errors: int = 0
    """Calls that raised, drafts that were nonsense."""
    errors_in_row: int = 0
    """Of these, those since its last sound draft."""
    num_late: int = 0
    """Calls that took too long."""
    late_in_row: int = 0
