"""Verdicts in the store: a server that starts again, and a review without a server, know them."""

from prolepsis.control.store.documents import Documents
from prolepsis.control.verdict.verdict import RuleVerdict

VERDICTS_KEPT = Documents.of("verdict", RuleVerdict)
"""Of the last minute in which a server ran, by rule."""
