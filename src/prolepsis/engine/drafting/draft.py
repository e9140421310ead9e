"""A draft: a chain or a small tree of guessed tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

ROOT = -1  # parent index of a node that follows the last committed token directly


@dataclass(frozen=True, slots=True)
class Draft:
    """Guessed continuation of one sequence; node i follows node `parents[i]` and always comes after it.

    The principal chain comes first (node 0 follows the root, node 1 follows node 0, ...), so accepting it moves no KV.
    No two children of one node carry the same token. Verification needs no draft probabilities.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    proposer: str
    survival: tuple[float, ...] = ()
    """Estimated probability that node i and all its ancestors are accepted; empty when the proposer has no estimate."""
    bucket: int = 0
    """Calibration bucket of the proposer (for example the match length), echoed to the acceptance estimator."""
    buckets: tuple[int, ...] = ()
    """Bucket of each node, if nodes of one draft differ; empty: `bucket` holds for all."""
    sources: tuple[str, ...] = ()
    """Proposer of each node of a merged draft (`engine.drafting.candidate`); empty: all are of `proposer`."""

    @property
    def is_chain(self) -> bool:
        return all(parent == i - 1 for i, parent in enumerate(self.parents))

    @property
    def principal(self) -> tuple[int, ...]:
        length = next((i for i, parent in enumerate(self.parents) if parent != i - 1), len(self.parents))
        return self.tokens[:length]

    @property
    def depth(self) -> int:
        return max(self.depths(), default=0)

    def depths(self) -> tuple[int, ...]:
        """Depth of each node; children of the root have depth 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    def cut(self, size: int) -> "Draft":
        return self.select(range(min(size, len(self.tokens))))

    def select(self, nodes: Sequence[int]) -> "Draft":
        """Return the draft of `nodes` only, given in ascending order and each with its parent."""
        return self if len(nodes) == len(self.tokens) else self.reorder(nodes)

    def reorder(self, nodes: Sequence[int], root: int = ROOT) -> "Draft":
        """Return the draft of `nodes` in this order, in which each follows its parent; `root` is above them."""
        place = {root: ROOT} | {node: i for i, node in enumerate(nodes)}
        return Draft(
            tuple([self.tokens[i] for i in nodes]),
            tuple([place[self.parents[i]] for i in nodes]),
            self.proposer,
            tuple([self.survival[i] for i in nodes]) if self.survival else (),
            self.bucket,
            tuple([self.buckets[i] for i in nodes]) if self.buckets else (),
            tuple([self.sources[i] for i in nodes]) if self.sources else (),
        )

    def child(self, node: int, token: int) -> int | None:
        tokens, parents = self.tokens, self.parents
        for i in range(node + 1, len(tokens)):
            if tokens[i] == token and parents[i] == node:
                return i
        return None

    def follow(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Return the nodes, from the root down, that `tokens` pass before they leave the draft."""
        path: list[int] = []
        for token in tokens:
            node = self.child(path[-1] if path else ROOT, token)
            if node is None:
                break
            path.append(node)
        return tuple(path)

    def after(self, tokens: Sequence[int]) -> "Draft | None":
        """Return what is left of the draft once `tokens` are committed, without nodes if that is nothing.

        None if they leave the draft. Survivals are then given that the nodes above were accepted.
        """
        path = self.follow(tokens)
        if len(path) < len(tokens):
            return None
        if not path:
            return self
        top = path[-1]
        inside, nodes = {top}, list[int]()
        for node in range(top + 1, len(self.tokens)):
            if self.parents[node] in inside:
                inside.add(node)
                nodes.append(node)
        below = self.reorder(nodes, root=top)
        alive = self.survival[top] if self.survival else 0.0
        below = replace(below, survival=tuple([min(1.0, each / alive) for each in below.survival]) if alive else ())
        return below if below.is_chain else below.reorder(principal_first(below.parents))

    def likeliest(self, size: int) -> "Draft":
        """Return the draft with at most `size` nodes: those that survive most often, or the first without estimates."""
        if len(self.tokens) <= size or not self.survival:
            return self.cut(size)
        nodes = sorted(range(len(self.tokens)), key=lambda node: -self.survival[node])[:size]
        return self.select(sorted(nodes))

    def credits(self, path: Sequence[int]) -> tuple[str, ...]:
        """Return the proposer that each position counts for: of its accepted node (`path`), else of its first one."""
        depths = self.depths()
        if not self.sources:
            return (self.proposer,) * max(depths, default=0)
        first: dict[int, int] = {}
        for node, depth in enumerate(depths):
            first.setdefault(depth, node)
        nodes = [*path, *(first[depth] for depth in range(len(path) + 1, len(first) + 1))]
        return tuple(self.sources[node] for node in nodes)

    def bucket_of(self, node: int) -> int:
        return self.buckets[node] if self.buckets else self.bucket

    def conditional(self, node: int) -> float | None:
        """Return the proposer's estimate that `node` is accepted given its parent was, or None without estimates."""
        if not self.survival:
            return None
        parent = self.parents[node]
        above = 1.0 if parent == ROOT else self.survival[parent]
        return self.survival[node] / above if above > 0.0 else 0.0

    @property
    def first_chance(self) -> float | None:
        """The proposer's estimate that one of its first tokens is accepted, or None without estimates."""
        if not self.survival:
            return None
        chances = (alive for alive, parent in zip(self.survival, self.parents, strict=True) if parent == ROOT)
        return min(1.0, sum(chances))

    def fault(self, vocab_size: int, limit: int) -> str | None:
        """Return what is wrong with a draft from an untrusted proposer, or None."""
        if len(self.tokens) > limit:
            return f"{len(self.tokens)} tokens; allowed: {limit}"
        lengths = tuple(len(each or self.tokens) for each in (self.parents, self.survival, self.buckets, self.sources))
        if len(self.parents) != len(self.tokens) or any(length != len(self.tokens) for length in lengths):
            return f"{len(self.tokens)} tokens against {lengths} parents, survivals, buckets and sources"
        ints = set(map(type, self.tokens)) <= {int}
        if not ints or not 0 <= min(self.tokens, default=0) <= max(self.tokens, default=0) < vocab_size:
            return f"tokens {self.tokens}; allowed: 0 to {vocab_size - 1}"
        if any(not ROOT <= parent < i for i, parent in enumerate(self.parents)):
            return f"parents {self.parents}; allowed: {ROOT}, or a node before"
        twins = len(set(zip(self.tokens, self.parents, strict=True))) != len(self.tokens)
        if twins or any(not 0.0 <= alive <= 1.0 for alive in self.survival):
            return "two children of one node carry the same token" if twins else f"survivals {self.survival}"
        return None


def chain(tokens: tuple[int, ...], proposer: str, survival: tuple[float, ...] = (), bucket: int = 0) -> Draft:
    return Draft(tokens, tuple(range(-1, len(tokens) - 1)), proposer, survival, bucket)


def best_first(
    nodes: Sequence[tuple[int, int, float, int]],  # token, parent, survival, bucket
    proposer: str,
) -> Draft:
    """Return the draft of `nodes` with its principal chain, the likeliest child of each node, in front.

    Nodes come after their parents, and the likeliest child of a node before its siblings.
    """
    tokens, parents, survival, buckets = zip(*nodes, strict=True)
    return Draft(tokens, parents, proposer, survival, buckets=buckets).reorder(principal_first(parents))


def principal_first(parents: Sequence[int]) -> list[int]:
    """Return all nodes in order, but the chain of first children, from the root down, in front."""
    principal: list[int] = []
    for i, parent in enumerate(parents):
        if parent == (principal[-1] if principal else ROOT):
            principal.append(i)
    in_chain = set(principal)
    return principal + [i for i in range(len(parents)) if i not in in_chain]
