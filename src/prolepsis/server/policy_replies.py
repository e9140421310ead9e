"""Shapes of /admin/policy."""

from typing import Annotated, Literal

from pydantic import Field

from prolepsis.server.fields import Body
from prolepsis.server.replies import Reply

_MOST = 2**31 - 1


class PolicyChangeBody(Body):
    expect: Annotated[int, Field(ge=0, le=_MOST)]
    """The version that is to be replaced, as whoever decided saw it; 0 before the first."""
    reason: Annotated[str, Field(max_length=500)] = ""


class PolicyBody(PolicyChangeBody):
    text: Annotated[str, Field(max_length=2**18)]
    """YAML."""


class PolicyRollbackBody(PolicyChangeBody):
    to: Annotated[int, Field(ge=1, le=_MOST)]
    """The version whose text is to be in use again, as a new version."""


class PolicyReply(Reply):
    """What this server has in use."""

    source: Literal["file", "store", "none"]
    """none: there is neither, and callers decide alone."""
    name: str | None
    version: int | None
    """Of the store: 0 before the first, null where it was not read yet or is not the source."""
    policy_version: str | None
    """As requests name it; null where no policy is in use."""
    rules: list[str]
    fault: str | None
    """Why what the source has now is not in use."""


class PolicyVersionReply(Reply):
    version: int
    digest: str
    """SHA-256 of the text."""
    author: str
    reason: str
    created_at: float
    """Unix time."""


class PolicyVersionsReply(Reply):
    in_use: int | None
    """On this server."""
    versions: list[PolicyVersionReply]
    """The newest first, at most 100."""


class PolicyTextReply(PolicyVersionReply):
    text: str


class PolicyChangedReply(PolicyVersionReply):
    policy_version: str
    warnings: list[str]
    """What is odd about it, and did not keep it from being used."""
