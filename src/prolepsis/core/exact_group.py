"""Exact groups: machines whose tokens are equal bit for bit, as tokens depend on request and computation only."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from prolepsis.core.digests import digest_of

FINGERPRINT = "fingerprint"
"""In versions that were recorded before the parts of a group were: a hash of weights, tokenizer and forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactGroup:
    """What a token depends on besides its request."""

    weights: str
    """A hash of the files, 16 hexadecimal digits."""
    tokenizer: str
    """Likewise."""
    forward: str
    """With its instruction set and its rounding."""
    exactness: str
    machine: str
    """Of forwards whose sums depend on it: processor or device, and the library that computes; else empty."""

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
