"""What a proposer says of the memory it takes, where that is worth telling."""

from typing import Protocol, runtime_checkable

from prolepsis.core.proposer_memory import ProposerMemory


@runtime_checkable
class TakesMemory(Protocol):
    """A proposer that takes memory beside the target's; one that is not says that it takes none."""

    def memory(self) -> ProposerMemory:
        """Return it as it is now; called from any thread."""
