"""A draft that nobody verifies: followed by the tokens that plain decoding emits, to say what it would have gained."""

from collections.abc import Sequence

from prolepsis.spec.draft import ROOT, Draft


class ShadowDraft:
    """The one draft of a sample in shadow that is still compared, and how far the emitted tokens followed it.

    The token that leaves it, or comes after its last one, still belongs to it: the step that verified it would have
    emitted that token too. So drafts made one after another are those that verification would have seen.
    """

    __slots__ = ("_node", "draft", "num_accepted")

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.num_accepted = 0
        """Tokens of the draft that were emitted."""
        self._node = ROOT

    def follow(self, tokens: Sequence[int]) -> bool:
        """Take in the tokens just emitted; return whether the draft is decided: by the first token that leaves it."""
        for token in tokens:
            child = self._child(token)
            if child is None:
                return True
            self._node, self.num_accepted = child, self.num_accepted + 1
        return False

    def _child(self, token: int) -> int | None:
        tokens, parents = self.draft.tokens, self.draft.parents
        after = range(self._node + 1, len(tokens))
        return next((i for i in after if parents[i] == self._node and tokens[i] == token), None)
