"""Exact groups: machines whose tokens are equal bit for bit, as tokens depend on request and computation only."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from prolepsis.core.json_value import digest_of

FINGERPRINT = "fingerprint"
"""Name of the hash of weights, tokenizer and forward in records that are older than the parts of a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactGroup:
    """The facts that a token depends on apart from its request."""

    weights: str  # A hash of the files, 16 hexadecimal digits
    tokenizer: str  # A hash of the tokenizer, 16 hexadecimal digits
    forward: str  # the forward, with its instruction set and rounding
    exactness: str
    machine: str
    """Processor or device, and the library that computes, if the sums of the forward depend on them; else empty."""

    def plain(self) -> dict[str, str]:
        return asdict(self)

    @property
    def digest(self) -> str:
        """A short name of the group: 12 hexadecimal digits."""
        return digest_of(self.plain())[:12]

    def differences(self, recorded: Mapping[str, str]) -> list[str]:
        """Return in which parts recorded versions are of another group; parts that were not recorded are left out."""
        return [
            f"{name} {recorded[name] or 'unknown'} recorded, {here or 'unknown'} here"
            for name, here in self.plain().items()
            if name in recorded and recorded[name] != here
        ]
