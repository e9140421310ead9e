"""Bodies, queries and replies of the routes for files and batches, in OpenAI's shapes."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Generic, Literal, TypeVar

from fastapi import UploadFile
from pydantic import Field, model_validator

from prolepsis.control.store.batches import Status as BatchStatus
from prolepsis.control.store.batches import StoredBatch
from prolepsis.control.store.tenant_files import TenantFile
from prolepsis.control.web.fields import Body, JsonObject, Metadata, Reply
from prolepsis.core.validation import Number
from prolepsis.server.batches.lines import LineFault
from prolepsis.server.known import GenerationRoute

Seconds = Annotated[int, Field(ge=3600, le=2592000)]


class ExpiresAfter(Body):
    anchor: Literal["created_at"]
    seconds: Seconds


class UploadForm(Body):
    """The fields of a form."""

    file: UploadFile
    purpose: Literal["batch", "corpus"]
    route: str | None = None
    """Of an operator's corpus: the route whose requests may draft from it. Our own field."""
    anchor: Annotated[Literal["created_at"] | None, Field(alias="expires_after[anchor]")] = None
    seconds: Annotated[Seconds | None, Field(alias="expires_after[seconds]")] = None


VerifyPreset = Literal["translate", "label", "moderate", "variants", "search-rewrite"]
VERIFY_PRESETS: Mapping[object, Mapping[str, object]] = {
    "translate": {"by": "score", "similarity": 0.8},
    "label": {"by": "rewrite", "at_least": 0.95},
    "moderate": {"by": "rewrite", "at_least": 0.98, "share": 0.2},
    "variants": {"by": "score", "similarity": 0.6},
    "search-rewrite": {"by": "score", "similarity": 0.7},
}


class VerifyBody(Body):
    """A writer writes the lines, and the target checks some."""

    use: VerifyPreset | None = None  # in place of the defaults
    writer: str | None = None  # by name; None: the first one
    share: Annotated[Number, Field(gt=0, le=1)] = 0.1  # of the lines, drawn at random
    by: Literal["score", "rewrite"] = "rewrite"
    similarity: Annotated[Number, Field(ge=0, le=1)] = 1.0
    """A line agrees with so much of the target's text, or of whose tokens so many are the target's first choice."""
    at_least: Annotated[Number, Field(ge=0, le=1)] | None = None
    """Share of lines that agree in a stratum, below which the target writes all of it; None: it is only stated."""

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, given: Any) -> Any:
        return {**VERIFY_PRESETS.get(str(given.get("use")), {}), **given} if isinstance(given, dict) else given


class BatchBody(Body):
    input_file_id: str
    endpoint: GenerationRoute
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None
    verify: VerifyBody | None = None


class BatchesQuery(Body):
    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 20


class FilesQuery(Body):
    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=10_000)] = 10_000
    order: Literal["asc", "desc"] = "desc"
    purpose: str | None = None


class FileReply(Reply):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"


class FileDeletedReply(Reply):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class LineFaultsReply(Reply):
    object: Literal["list"] = "list"
    data: list[LineFault]


class LineCounts(Reply):
    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchReply(Reply, extra="ignore"):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: LineFaultsReply | None = None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: LineCounts = LineCounts()
    usage: JsonObject | None = None
    metadata: Metadata | None = None
    verify: VerifyBody | None = None
    agreement: JsonObject | None = None  # by stratum, before lines were written again
    cost: JsonObject | None = None


Item = TypeVar("Item", FileReply, BatchReply)


class PageReply(Reply, Generic[Item]):
    """A page of a list."""

    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


def page(items: list[Item], limit: int) -> PageReply[Item]:
    """Return the first `limit` of what was found, of which one more says that there are more."""
    data = items[:limit]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return PageReply(data=data, first_id=first, last_id=last, has_more=len(items) > limit)


def shown_file(file: TenantFile) -> FileReply:
    own = {name: value for name, value in _whole(asdict(file)).items() if name in FileReply.model_fields}
    return FileReply.model_validate({**own, "id": file.file_id, "bytes": file.num_bytes})


def shown_batch(batch: StoredBatch, counts: Mapping[str, object]) -> BatchReply:
    """Return a batch as clients see it; `counts`: of one that runs, as its lines stand now."""
    own = {**_whole(asdict(batch)), "id": batch.batch_id, "model": batch.model or None}
    return BatchReply.model_validate({**batch.document, **counts, **own})


def _whole(fields: Mapping[str, object]) -> Mapping[str, object]:
    return {name: int(value) if isinstance(value, float) else value for name, value in fields.items()}
