"""What a flag said of one request: plain values to keep with it."""

import re
from dataclasses import dataclass

_SHOWABLE = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class FlagDecision:
    """OpenFeature's evaluation details."""

    key: str
    value: bool
    variant: str | None
    reason: str
    """STATIC, TARGETING_MATCH, SPLIT, DEFAULT, DISABLED, CACHED, STALE, UNKNOWN or ERROR."""
    version: str = ""
    """Of the set of flags, where the provider says one."""
    error: str = ""
    """OpenFeature's code of what went wrong, such as FLAG_NOT_FOUND; the default holds then."""

    @property
    def shown(self) -> str:
        """Return KEY:VARIANT:REASON for a header; the value where it has no variant that a header can carry."""
        variant = self.variant if self.variant and _SHOWABLE.fullmatch(self.variant) else str(self.value).lower()
        return f"{self.key}:{variant}:{self.reason}"
