"""Whether a sequence needs drafts to keep its latency target.

Sequences that are behind their targets get more of a pass, which those that are ahead give; what the others give is
bounded (`engine.drafting.window`). A target that is missed by far is as good as none: it cannot be saved, and who asks
for what no machine can do takes nothing from others.
"""

_BEHIND, _AHEAD = 0.85, 0.7  # of the time that a target allows so far: the rest is kept for what is still to come
_LOST, _FIRST = 2.0, 16  # times the time that it allows, also for so many tokens: one slow pass loses nothing


def urgency(spent_ms: float, num_tokens: float, target_ms: float) -> int:
    """Return it for tokens that took `spent_ms`, with a target of `target_ms` for each.

    1: behind; -1: ahead; 0: neither, or the target is lost, as without any.
    """
    allowed_ms = num_tokens * target_ms
    if spent_ms >= _LOST * max(allowed_ms, _FIRST * target_ms):
        return 0
    return (spent_ms > _BEHIND * allowed_ms) - (spent_ms < _AHEAD * allowed_ms)
