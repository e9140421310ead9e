"""Tickets of a review: a webhook gets each finding once in a day, week, month or quarter."""

from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import sha256

import httpx2

from prolepsis.control.store import documents as of
from prolepsis.control.store.database import Database
from prolepsis.control.store.documents import Documents, StoredDocument
from prolepsis.core.bounded_replies import post
from prolepsis.core.config import DAY_S
from prolepsis.core.errors import ConfigError
from prolepsis.core.json_value import canonical
from prolepsis.core.network import address
from prolepsis.ops.incident.review import ReviewFinding

_TICKETS = Documents("ticket", str, str)  # findings that were posted, by key
_KEPT_S = 200 * DAY_S  # longer than the quarter in which a ticket is not posted again


def post_new(findings: Iterable[ReviewFinding], url: str, length: str, end: datetime, database: Database) -> int:
    """Post a ticket for each finding without one in the period of the calendar that has `end`; return their number.

    Raises `ConfigError` where a ticket is not taken; those before it are not posted again.
    """
    place, end, number = address(url), end.astimezone(UTC), 0
    if place is None:
        raise ConfigError("tickets is no address; allowed: http(s)://HOST or HOST:PORT, with a path", param="tickets")
    days = {"day": f"{end:%Y-%m-%d}", "week": f"{end:%G-W%V}", "month": f"{end:%Y-%m}"}
    period = days.get(length, f"{end.year}-Q{(end.month + 2) // 3}")
    for finding in findings:
        key = sha256(canonical([period, finding.what, finding.subject]).encode()).hexdigest()[:32]
        with database.read() as connection:
            if _TICKETS.get(connection, key) is not None:
                continue
        try:
            post(url, {"key": key, "period": period, **asdict(finding)}, {"idempotency-key": key})
        except httpx2.HTTPError as error:
            said = error.response.status_code if isinstance(error, httpx2.HTTPStatusError) else error
            message = f"{place.hostname} did not take a ticket: {said}; posted before: {number}"
            raise ConfigError(message, param="tickets") from None
        with database.write() as connection:
            _TICKETS.add(connection, [StoredDocument(key, finding.what, end.timestamp())])
            _TICKETS.remove(connection, of.at < end.timestamp() - _KEPT_S)
        number += 1
    return number
