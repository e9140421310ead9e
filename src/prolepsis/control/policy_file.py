"""The policy in use, as its file has it: taken over as a whole when it is right, otherwise the last good one stays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from prolepsis.control.check import NOTHING_KNOWN, Known, check
from prolepsis.control.finding import Finding
from prolepsis.control.policy import Policy
from prolepsis.control.reading import InvalidPolicy, located, parse_policy, read_text
from prolepsis.core.errors import ConfigError

Stamp = tuple[int, ...]
Check = Callable[[Policy], Sequence[Finding]]


@dataclass(frozen=True, slots=True)
class Reload:
    """What a look at the file brought."""

    changed: bool
    """A policy of another version or content was taken over."""
    refused: ConfigError | None = None
    """Why the file as it is now was not taken over; said once for each state of the file."""


class PolicyFile:
    """Holds the last good policy of a file; `policy` is replaced in one assignment, so readers need no lock."""

    def __init__(self, path: Path, known: Known = NOTHING_KNOWN, also: Check | None = None) -> None:
        """`also`: what else must hold where it is used. Raises `ConfigError` where the file has no usable policy."""
        self.path = path
        self._known = known
        self._also = also
        self._stamp = _stamp(path)
        text = read_text(path)
        self._seen = _digest(text)
        self.policy = self._usable(text)

    def look(self) -> Reload:
        """Take over the file if it changed; cheap where it did not. Never raises for what the file holds."""
        stamp = _stamp(self.path)
        return Reload(changed=False) if stamp == self._stamp else self.reload(stamp)

    def reload(self, stamp: Stamp | None = None) -> Reload:
        """Read the file now, whatever its times say.

        `stamp` is what the file looked like before this call; a write in between is seen by the next `look`.
        """
        self._stamp = _stamp(self.path) if stamp is None else stamp
        try:
            text = read_text(self.path)
        except ConfigError as error:
            return self._refuse(str(error), error)
        if _digest(text) == self._seen:
            return Reload(changed=False)
        try:
            policy = self._usable(text)
        except ConfigError as error:
            return self._refuse(_digest(text), error)
        self._seen = _digest(text)
        changed = policy.full_version != self.policy.full_version
        self.policy = policy
        return Reload(changed)

    def _usable(self, text: str) -> Policy:
        """Return the policy; raises `InvalidPolicy` where it has an error."""
        policy, document = parse_policy(text, str(self.path))
        more = self._also(policy) if self._also else ()
        findings = located([*check(policy, self._known), *more], document)
        errors = [finding for finding in findings if finding.severity == "error"]
        if errors:
            raise InvalidPolicy(str(self.path), errors)
        return policy

    def _refuse(self, seen: str, error: ConfigError) -> Reload:
        already, self._seen = seen == self._seen, seen
        return Reload(changed=False, refused=None if already else error)


def _stamp(path: Path) -> Stamp:
    """Return what changes when the file does; empty where it cannot be looked at."""
    try:
        stat = path.stat()
    except OSError:
        return ()
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_size


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()
