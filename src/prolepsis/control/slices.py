"""Slices: requests that speculation may suit alike, as breakers and whoever compares requests name them."""

from prolepsis.control.facts import RequestFacts

SLICE = r"^[a-z-]{1,32}/[a-z-]{1,32}/(free|structured)/(short|medium|long)$"
"""What names of slices look like."""
_SHORT, _MEDIUM = 512, 4096  # tokens of the prompt


def slice_of(facts: RequestFacts) -> str:
    """Return the slice of a request: ROUTE/TIER/FORM/CONTEXT, such as chat-completions/standard/free/short.

    FORM is `free` or `structured` (tools count as structured), CONTEXT is `short` up to 512 prompt tokens, `medium` up
    to 4096, else `long`. There are few of them on purpose: each has evidence of its own to gather.
    """
    route = facts.route.removeprefix("/v1/").strip("/").replace("/", "-") or "none"
    form = "structured" if facts.tools or facts.structured_output != "none" else "free"
    return f"{route}/{facts.tier or 'none'}/{form}/{_context(facts.prompt_tokens or 0)}"


def _context(num_tokens: int) -> str:
    if num_tokens <= _SHORT:
        return "short"
    return "medium" if num_tokens <= _MEDIUM else "long"
