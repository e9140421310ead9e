"""Verdicts in the store: a server that starts again, and a review without a server, know them."""

from sqlalchemy import Connection

from prolepsis.control.store.documents import Documents
from prolepsis.control.verdict.verdict import RuleVerdict

VERDICTS_KEPT = Documents.of("verdict", RuleVerdict)


def stored_verdicts(connection: Connection) -> dict[str, RuleVerdict]:
    """Return the verdicts of the last minute in which a server ran, by rule."""
    return {document.key: document.value for document in VERDICTS_KEPT.list(connection)}
