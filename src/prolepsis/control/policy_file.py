"""The policy in use, as its file has it: taken over as a whole when it is right, otherwise the last good one stays."""

from pathlib import Path

from prolepsis.control.check import NOTHING_KNOWN, Known
from prolepsis.control.last_good import LastGood
from prolepsis.control.policy import Policy
from prolepsis.control.reading import read_text
from prolepsis.control.usable import usable_policy


class PolicyFile(LastGood[Policy]):
    """Holds the last good policy of a file."""

    def __init__(self, path: Path, known: Known = NOTHING_KNOWN) -> None:
        """Raises `ConfigError` where the file has no usable policy."""
        self._known = known
        super().__init__(path)

    @property
    def policy(self) -> Policy:
        return self.value

    @property
    def name(self) -> str:
        return str(self.path)

    def _read(self) -> str:
        return read_text(self.path)

    def _parse(self, text: str) -> Policy:
        return usable_policy(text, self.name, self._known)

    def _version(self, policy: Policy) -> str:
        return policy.full_version
