"""The policy in use, as its file has it: taken over as a whole when it is right, otherwise the last good one stays."""

from collections.abc import Callable, Sequence
from pathlib import Path

from prolepsis.control.check import NOTHING_KNOWN, Known, check
from prolepsis.control.finding import Finding
from prolepsis.control.last_good import LastGood
from prolepsis.control.policy import Policy
from prolepsis.control.reading import InvalidPolicy, located, parse_policy, read_text

Check = Callable[[Policy], Sequence[Finding]]


class PolicyFile(LastGood[Policy]):
    """Holds the last good policy of a file."""

    def __init__(self, path: Path, known: Known = NOTHING_KNOWN, also: Check | None = None) -> None:
        """`also`: what else must hold where it is used. Raises `ConfigError` where the file has no usable policy."""
        self._known = known
        self._also = also
        super().__init__(path)

    @property
    def policy(self) -> Policy:
        return self.value

    def _read(self) -> str:
        return read_text(self.path)

    def _parse(self, text: str) -> Policy:
        """Return the policy; raises `InvalidPolicy` where it has an error."""
        policy, document = parse_policy(text, str(self.path))
        more = self._also(policy) if self._also else ()
        findings = located([*check(policy, self._known), *more], document)
        errors = [finding for finding in findings if finding.severity == "error"]
        if errors:
            raise InvalidPolicy(str(self.path), errors)
        return policy

    def _version(self, policy: Policy) -> str:
        return policy.full_version
