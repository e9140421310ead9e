"""Loads the native part of proposing (`engine/native/drafts.cpp`)."""

import functools
from types import ModuleType

from prolepsis.engine.native.build import load_if_possible


@functools.cache
def draft_kernel() -> ModuleType | None:
    """Return the native module, built and loaded once for the process; None where that is not possible.

    It offers `SequenceIndex`, `SharedIndex` and `propose` as `engine.drafting.proposers.suffix_index` has them, and
    `merge(tokens, parents, survivals, the same of another draft, limit)`, which returns those of the merged draft, and
    for each of its nodes which one of the nodes of both it was (`engine.drafting.candidate`).
    """
    return load_if_possible("drafts", ("drafts.cpp",), ("-ffp-contract=off",))
