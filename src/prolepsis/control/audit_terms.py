"""What the audit log keeps of the requests that match a rule."""

from typing import Annotated, Literal

from pydantic import Field

from prolepsis.control.shape import Number, Part

Content = Literal["digests", "text", "tokens"]
"""Of prompt and answer: their salted digests only; their text too, redacted; their tokens too, where redaction finds
nothing in their text, so that the request can be decoded again."""


class AuditTerms(Part):
    """In place of `audit_sample` and `audit_content` of the server."""

    percentage: Annotated[Number, Field(ge=0, le=100)] = 100.0
    """Of the requests."""
    content: Content = "digests"
