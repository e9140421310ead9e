"""Drafts and grammars: what leaves the grammar is cut off before it is verified."""

from prolepsis.grammar.matcher import Matcher
from prolepsis.spec.draft import ROOT, Draft

FORCED_RATE = 0.998
"""Acceptance to expect of a token that the grammar forces: it is the only one its mask allows."""


def within_grammar(draft: Draft, matcher: Matcher) -> Draft | None:
    """Return the draft without the nodes whose path leaves the grammar, None where no node stays.

    None also where the grammar cannot say: then it cannot say what may be sampled either, and verification reports it.
    """
    try:
        if draft.is_chain:
            size = matcher.accepted(draft.tokens)
            return None if size == 0 else draft if size == len(draft.tokens) else draft.cut(size)
        kept: set[int] = set()
        for path in _paths(draft):
            kept.update(path[: matcher.accepted([draft.tokens[node] for node in path])])
    except Exception:  # contained: see above
        return None
    if len(kept) == len(draft.tokens):
        return draft
    return draft.select(sorted(kept)) if kept else None


def forced_nodes(draft: Draft, matcher: Matcher) -> list[int]:
    """Return the draft's nodes on the path that the grammar forces, from the root down."""
    forced, nodes, above = matcher.forced(), list[int](), ROOT
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        if len(nodes) < len(forced) and parent == above and token == forced[len(nodes)]:
            nodes.append(node)
            above = node
    return nodes


def _paths(draft: Draft) -> list[list[int]]:
    """Return the nodes from the root to each leaf."""
    paths: list[list[int]] = []
    inner = set(draft.parents)
    for leaf in range(len(draft.tokens)):
        if leaf not in inner:
            path = [leaf]
            while (parent := draft.parents[path[-1]]) != ROOT:
                path.append(parent)
            paths.append(path[::-1])
    return paths
