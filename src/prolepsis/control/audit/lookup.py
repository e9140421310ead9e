"""Finds a request by any name that people have: x-request-id, trace id, answer id, or the number of its audit entry.

A retry that got an earlier answer (`Idempotency-Key`) finds it by its own names too.
"""

from dataclasses import dataclass

from sqlalchemy import Connection

from prolepsis.control.audit import chain
from prolepsis.control.audit.entry import SERVED
from prolepsis.control.store import records

MOST = 200  # records, and entries, of one name: a trace may have many requests


@dataclass(frozen=True, slots=True)
class FoundRequest:
    records: list[dict[str, object]]  # one a prompt, with the columns of the store's `request_records`
    audit_entries: list[int]  # numbers of the entries about the request


def find_request(connection: Connection, name: str) -> FoundRequest:
    """Return what the store has of a request, in the order in which it came."""
    entries, answers = chain.about(connection, name, MOST), records.answers_of_retries(connection, [name], MOST)
    served = [entry.details.subject for entry in entries if entry.action == SERVED and entry.details is not None]
    rows = records.find(connection, {name, *served, *answers}, MOST)
    entries += chain.named(connection, {*answers, *(str(record["request_id"]) for record in rows)}, MOST)
    return FoundRequest(rows, sorted({entry.seq for entry in entries}))
