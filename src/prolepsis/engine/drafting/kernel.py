"""Loads the native part of proposing (`engine/native/drafts.cpp`)."""

import functools
from types import ModuleType

from prolepsis.engine.native.build import load_if_possible


@functools.cache
def draft_kernel() -> ModuleType | None:
    """Return the native module, built and loaded once for the process; None where that is not possible.

    It offers `LocalIndex()`, whose length is the tokens it knows, `SharedIndex(max_bytes)` with `add(tag, tokens)`,
    `propose(shared, [(local, new tokens, tag, limit)])`, which returns for each entry a draft's tokens, parents,
    survivals and buckets, or None (`engine.drafting.proposers.suffix`); and
    `merge(tokens, parents, survivals, the same of another draft, limit)`, which returns those of the merged draft, and
    for each of its nodes which one of the nodes of both it was (`engine.drafting.candidate`).
    """
    return load_if_possible("drafts", ("drafts.cpp",), ("-ffp-contract=off",))
