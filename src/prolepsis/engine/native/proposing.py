"""What proposing does in native calls (`sources/drafts.cpp`): the suffix index and its trees, and merged drafts.

The readable references are `engine.drafting.proposers.suffix_index` and, of `merge`, `engine.drafting.candidate`. Calls
are short and keep the interpreter's lock: indexes belong to no thread.
"""

from array import array
from collections.abc import Iterable, Sequence
from functools import cache, partial
from itertools import accumulate, chain

from prolepsis.engine.native.choice import common_library
from prolepsis.engine.native.library import Library, NativeHandle, integers, places_of, zeros

Nodes = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...], tuple[int, ...]]
"""Tokens, parents, survivals and buckets of a draft."""
Scored = tuple[Sequence[int], Sequence[int], Sequence[float]]
"""Tokens, parents and survivals of a draft that is merged."""


class NativeSequenceIndex:
    def __init__(self, library: Library, searches_own: bool = True) -> None:
        self._library = library
        self.handle = NativeHandle(library.sequence(searches_own), library.sequence_free)

    def __len__(self) -> int:
        return self._library.sequence_size(self.handle.pointer)

    @property
    def goes_on(self) -> bool:
        return bool(self._library.sequence_goes_on(self.handle.pointer))

    def give(self, tokens: Iterable[int]) -> None:
        given = array("i", tokens)
        self._library.sequence_give(self.handle.pointer, *places_of(given), len(given))

    def follow_given(self) -> None:
        self._library.sequence_follow_given(self.handle.pointer)


class NativeSharedIndex:
    def __init__(self, library: Library, max_bytes: int) -> None:
        self._library = library
        self.handle = NativeHandle(library.shared(max_bytes), library.shared_free)

    @property
    def num_bytes(self) -> int:
        return self._library.shared_bytes(self.handle.pointer)

    @property
    def num_tokens(self) -> int:
        return self._library.shared_size(self.handle.pointer)

    def add(self, tag: int, tokens: Iterable[int]) -> None:
        added = array("i", tokens)
        self._library.shared_add(self.handle.pointer, tag, *places_of(added), len(added))


Request = tuple[NativeSequenceIndex, Sequence[int], int, int]
"""Its index, the tokens that are new in it, the tag of its cache salt, and the most nodes."""


class DraftKernel:
    """What the module `suffix_index` offers, by the same names, and `merge`."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self.SequenceIndex = partial(NativeSequenceIndex, library)
        self.SharedIndex = partial(NativeSharedIndex, library)

    def propose(self, shared: NativeSharedIndex | None, requests: Sequence[Request]) -> list[Nodes | None]:
        indexes = array("Q", [request[0].handle.pointer for request in requests])
        tokens = array("i", chain.from_iterable([request[1] for request in requests]))
        sizes = integers([len(request[1]) for request in requests])
        tags = integers([request[2] for request in requests])
        limits = integers([max(0, request[3]) for request in requests])
        counts, output = zeros(len(requests)), _Output(sum(limits))
        pointer = shared and shared.handle.pointer
        self._library.propose(
            pointer, len(requests), *places_of(indexes, tokens, sizes, tags, limits, counts, *output.arrays)
        )
        places = [0, *accumulate(limits)]
        return [output.nodes(place, count) if count else None for place, count in zip(places, counts, strict=False)]

    def merge(self, first: Scored, second: Scored, limit: int) -> tuple[Nodes, list[int]]:
        """Return the merged draft, and for each of its nodes which one of the nodes of both it was."""
        tokens, parents = integers(chain(first[0], second[0])), integers(chain(first[1], second[1]))
        survival = array("d", chain(first[2], second[2]))
        output, origins = _Output(len(tokens)), zeros(len(tokens))
        arrays = (tokens, parents, survival)
        count = self._library.merge(
            len(first[0]), len(second[0]), *places_of(*arrays), limit, *places_of(*output.arrays, origins)
        )
        return output.nodes(0, count), origins[:count].tolist()


@cache
def draft_kernel() -> DraftKernel | None:
    """Return the kernel, loaded once for the process; None where that is not possible."""
    library = common_library()
    return None if library is None else DraftKernel(library)


class _Output:
    """Room for the nodes of drafts."""

    def __init__(self, size: int) -> None:
        self.tokens, self.parents, self.buckets = zeros(size), zeros(size), zeros(size)
        self.survival = array("d", bytes(8 * size))
        self.arrays = (self.tokens, self.parents, self.buckets, self.survival)

    def nodes(self, place: int, count: int) -> Nodes:
        part = slice(place, place + count)
        return (
            tuple(self.tokens[part]),
            tuple(self.parents[part]),
            tuple(self.survival[part]),
            tuple(self.buckets[part]),
        )
