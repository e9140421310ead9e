"""A draft that nobody verifies: followed by the tokens that plain decoding emits, to say what it would have gained."""

from collections.abc import Sequence

from prolepsis.spec.draft import ROOT, Draft


class ShadowDraft:
    """The one draft of a sample in shadow that is still compared, and how far the emitted tokens followed it.

    The token that leaves it, or comes after its last one, still belongs to it: the step that verified it would have
    emitted that token too. So drafts made one after another are those that verification would have seen.
    """

    __slots__ = ("draft", "path")

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.path: list[int] = []
        """Nodes of the draft whose tokens were emitted, from the root down."""

    def follow(self, tokens: Sequence[int]) -> bool:
        """Take in the tokens just emitted; return whether the draft is decided: by the first token that leaves it."""
        for token in tokens:
            child = self.draft.child(self.path[-1] if self.path else ROOT, token)
            if child is None:
                return True
            self.path.append(child)
        return False
