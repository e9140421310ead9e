"""Bundles: what another machine needs to replay a request, redacted for anyone, or whole for a sealed file."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import JsonValue, TypeAdapter, ValidationError
from sqlalchemy import Connection

from prolepsis import __version__
from prolepsis.control.audit import chain
from prolepsis.control.audit.entry import RECORDING, SERVED, AuditEntry
from prolepsis.control.audit.lookup import find_request
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.errors import ConfigError, InvalidParameter

FORMAT: Literal["prolepsis bundle 1"] = "prolepsis bundle 1"
Form = Literal["redacted", "whole"]
_POLICY = "policy"
"""The version of the policy among an entry's versions, and the area of entries that have its content."""
_OF_PEOPLE = frozenset({"tenant", "key_id", "http_request_id", "answer_id", "trace_id"})
"""Fields that say whose request it was, or have a name that the client chose."""
_CHECKABLE = frozenset({"digest_salt", "prompt_digest", "output_digests"})
"""Fields with which a guess at the text can be checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    format: Literal["prolepsis bundle 1"] = FORMAT
    form: Form
    """redacted: says neither whose request it was nor what the policy is, and has nothing that checks a guess."""
    made_at: str  # UTC, ISO 8601
    made_with: str  # version of the software
    entries: tuple[AuditEntry, ...]
    """One entry per prompt: seed, sampling, versions, exact group, and the tokens if they were kept."""
    records: tuple[dict[str, JsonValue], ...]  # figures of the same prompts
    policies: dict[str, JsonValue]  # content of the policies in use then, by version


_BUNDLE: TypeAdapter[Bundle] = TypeAdapter(Bundle)


def bundle_of(connection: Connection, name: str, form: Form) -> Bundle:
    """Return the bundle of a request by any of its names; raises `InvalidParameter` if the store knows none."""
    request = find_request(connection, name)
    about = [chain.find(connection, str(seq)) for seq in request.audit_entries]
    entries = [entry for entry in about if entry is not None and entry.action == SERVED]
    if not entries and not request.records:
        message = f"no request is known as {name[:128]!r}"
        raise InvalidParameter(f"{message}; allowed: x-request-id, trace id, answer id, number of an entry", param="id")
    whole = form == "whole"
    return Bundle(
        form=form,
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        made_with=__version__,
        entries=tuple(entries if whole else map(_redacted, entries)),
        records=tuple(_without(record, frozenset() if whole else _OF_PEOPLE) for record in request.records),
        policies=_policies(connection, entries) if whole else {},
    )


def to_json(bundle: Bundle) -> bytes:
    return _BUNDLE.dump_json(bundle, indent=1) + b"\n"


def read_bundle(text: bytes, name: str) -> Bundle:
    """Return the bundle in a file; raises `ConfigError` for anything else, and for entries that were changed."""
    try:
        bundle = _BUNDLE.validate_json(text)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"])) or "the file"
        raise ConfigError(f"{name} is not a bundle: {where}: {problem['msg'].lower()}", param="bundle") from None
    for entry in bundle.entries:
        checkable = entry.details if bundle.form == "whole" else None
        changed = checkable is not None and checkable.digest() != entry.details_digest
        if changed or entry.expected_digest() != entry.digest:
            raise ConfigError(f"{name}: entry {entry.seq} is not as it was written", param="bundle")
    return bundle


def is_replayable(entry: AuditEntry) -> bool:
    after = entry.details.after if entry.details is not None else None
    return isinstance(after, dict) and RECORDING in after


def exported(bundle: Bundle, actor: str, sealed_for: str = "") -> AuditEvent:
    """Return the event of handing out a bundle; its request ids are random and name no person."""
    ids = [*(entry.details.subject for entry in bundle.entries if entry.details is not None)]
    ids += [str(record["request_id"]) for record in bundle.records if record["request_id"] not in ids]
    after = {"form": bundle.form, "entries": [entry.seq for entry in bundle.entries], "sealed_for": sealed_for}
    return AuditEvent(actor=actor, action="request.exported", subject=ids[0] if ids else "", after=after, names=(*ids,))


def _redacted(entry: AuditEntry) -> AuditEntry:
    details = entry.details
    if details is None:
        return entry
    after = _without(details.after, _OF_PEOPLE | _CHECKABLE) if isinstance(details.after, dict) else None
    return replace(entry, details=replace(details, actor="", tenant="", before=None, after=after, salt=""))


def _without(values: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def _policies(connection: Connection, entries: Iterable[AuditEntry]) -> dict[str, JsonValue]:
    """Return what the audit log has of the policies that decided about these requests."""
    policies: dict[str, JsonValue] = {}
    for version in dict.fromkeys(entry.versions.get(_POLICY, "") for entry in entries):
        content = chain.of_version(connection, _POLICY, version) if version else None
        if content is not None and content.details is not None:
            after = content.details.after
            policies[version] = after.get("content", after) if isinstance(after, dict) else None
    return policies
