"""/v1/files and /v1/batches, as OpenAI's client uses them."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from functools import partial
from typing import Annotated, BinaryIO, NoReturn
from uuid import uuid4

from fastapi import Depends, Request
from fastapi.responses import Response, StreamingResponse
from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException, MultiPartParser

from prolepsis.control.store.batches import StoredBatch
from prolepsis.control.store.tenant_files import MOST_FILES, PART_BYTES, RUNNING, TenantFile
from prolepsis.control.web.body_reader import Reader, parse_texts, read_body, read_query
from prolepsis.control.web.caller import Caller, SignedIn, caller_of
from prolepsis.control.web.context import Context
from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.refusals import too_large
from prolepsis.control.web.routes import CLIENTS, Route, Routes
from prolepsis.core.errors import InvalidParameter
from prolepsis.server.batches.bodies import (
    BatchBody,
    BatchesQuery,
    BatchReply,
    FileDeletedReply,
    FileReply,
    FilesQuery,
    PageReply,
    UploadForm,
    page,
    shown_batch,
    shown_file,
)
from prolepsis.server.batches.lines import MOST_BYTES, parse_line
from prolepsis.server.batches.runner import WINDOW_S, BatchRunner
from prolepsis.server.corpora import PURPOSE, Corpora, is_corpus, purpose_of
from prolepsis.server.services import Models
from prolepsis.server.writers import CHAT_ROUTE

MOST_RUNNING = 100
"""Batches of a tenant that have not ended."""
_FilesQuery = Annotated[FilesQuery, read_query(FilesQuery)]
_BatchesQuery = Annotated[BatchesQuery, read_query(BatchesQuery)]
_FILES_OF_PAGE = 1000
_NAME_LENGTH = 512
_FORM_BYTES = 2**16
"""Room of a form besides its file."""


class UploadReader(Reader):
    """Reads a form with a file into a temporary file, and the whole of it into the store."""

    most_bytes = MOST_BYTES + _FORM_BYTES

    def __init__(self, context: Context, runner: BatchRunner, models: Models) -> None:
        content = {"multipart/form-data": {"schema": UploadForm.model_json_schema()}}
        self.openapi = {"requestBody": {"required": True, "content": content}}
        self._is_kept = context.database.is_kept
        self._most_of_tenant = context.config.batch_file_bytes
        self._files = runner.files
        self._retention_s = runner.retention_s
        self._models = models
        self._emit = context.emit
        self._adding = asyncio.Lock()

    async def __call__(self, request: Request) -> TenantFile:
        if not self._is_kept:
            message = "Files are kept in the store, and this server has none (store is none)."
            raise RequestRefused(message, code="no_store", status=409)
        caller = caller_of(request)
        self._models.of(None, caller).admission.admit_small(request)
        held = await asyncio.to_thread(self._files.held_bytes, caller.tenant)
        room = max(0, min(MOST_BYTES, self._most_of_tenant - held))
        form = await _read_form(request, room)
        try:
            given = parse_texts(form, UploadForm, "form")
            now, size, name = time.time(), given.file.size or 0, given.file.filename or ""
            if size > room:
                raise _file_too_large(room)
            if len(name) > _NAME_LENGTH:
                message = f"The file's name has {len(name)} characters; allowed: {_NAME_LENGTH}."
                raise RequestRefused(message, code="invalid_value", param="file")
            file = TenantFile(
                tenant=caller.tenant,
                purpose=purpose_of(given.route, caller) if given.purpose == PURPOSE else given.purpose,
                filename=name,
                num_bytes=size,
                created_at=now,
                expires_at=now + min(self._retention_s, given.seconds or math.inf),
            )
            if is_corpus(file):
                await self._keep_corpus(file, given.file.file, caller)
            else:
                await asyncio.to_thread(self._put, file, given.file.file)
        finally:
            await form.close()
        return file

    async def _keep_corpus(self, file: TenantFile, content: BinaryIO, caller: Caller) -> None:
        """Check a file, then keep it, and let each model that the caller may use draft from it."""
        corpora = _corpora(file, caller, self._models)
        given = {corpus: await corpus.tokenise(file, lambda: b"".join(_parts(content))) for corpus in corpora}
        async with self._adding:  # two that are checked at once would both take the room that is left
            for model_corpus, ids in given.items():
                await model_corpus.check(file, ids)
            await asyncio.to_thread(self._put, file, content)
        self._emit(caller.act("corpus.added", file.file_id))
        for model_corpus, ids in given.items():
            await model_corpus.take(file, ids)

    def _put(self, file: TenantFile, content: BinaryIO) -> None:
        """Keep a file, where its tenant has room for it. Waits for the database."""
        if not self._files.put(file, _parts(content), most_bytes=self._most_of_tenant):
            raise too_large("body", f"{self._most_of_tenant} bytes in {MOST_FILES} files of the tenant")


def _parts(content: BinaryIO) -> Iterator[bytes]:
    content.seek(0)
    return iter(partial(content.read, PART_BYTES), b"")


def _corpora(file: TenantFile, caller: Caller, models: Models) -> set[Corpora]:
    """Return the corpora that a file belongs to: those of each model that the caller may use; none for other files."""
    return {services.corpora for services in models.allowed(caller).values()} if is_corpus(file) else set()


async def _read_form(request: Request, room: int) -> FormData:
    """Read a form with at most one file, which needs no memory; raises `RequestRefused`."""

    async def chunks() -> AsyncGenerator[bytes, None]:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > room + _FORM_BYTES:
                raise _file_too_large(room)
            yield chunk

    kind = request.headers.get("content-type", "")
    if not kind.lower().startswith("multipart/form-data"):
        raise _invalid_form(f"Content-Type is {kind[:128]!r}; allowed: multipart/form-data with a boundary")
    try:
        return await MultiPartParser(request.headers, chunks(), max_files=1, max_fields=8, max_part_size=512).parse()
    except MultiPartException as error:
        raise _invalid_form(error.message) from None


def _file_too_large(room: int) -> RequestRefused:
    return too_large("body", f"{room} bytes of a file, with the tenant's other files")


def _invalid_form(message: str) -> RequestRefused:
    return RequestRefused(message, code="invalid_form")


def batch_routes(context: Context, runner: BatchRunner, models: Models) -> Sequence[Route]:
    """Return the routes; what belongs to another tenant is not found."""
    return [*_file_routes(context, runner, models), *_batch_routes(context, runner, models)]


def _file_routes(context: Context, runner: BatchRunner, models: Models) -> Sequence[Route]:
    routes, files = Routes(), runner.files
    upload = Annotated[TenantFile, Depends(UploadReader(context, runner, models))]

    async def found(tenant: str, file_id: str, param: str | None = None) -> TenantFile:
        file = await asyncio.to_thread(files.get, tenant, file_id)
        return file or _not_found(f"No such File object: {file_id[:64]}", param)

    @routes.post("/v1/files", roles=CLIENTS, summary="Upload a file of requests, or a corpus", errors=(409,))
    async def create(file: upload) -> FileReply:
        return shown_file(file)

    @routes.get("/v1/files", roles=CLIENTS, summary="List files")
    async def listed(caller: SignedIn, query: _FilesQuery) -> PageReply[FileReply]:
        if query.after:
            await found(caller.tenant, query.after, "after")
        rows = await asyncio.to_thread(
            files.newest,
            caller.tenant,
            purpose=query.purpose,
            after=query.after,
            most=min(query.limit, _FILES_OF_PAGE) + 1,
            ascending=query.order == "asc",
        )
        return page([shown_file(row) for row in rows], min(query.limit, _FILES_OF_PAGE))

    @routes.get("/v1/files/{file_id}", roles=CLIENTS, summary="Show a file")
    async def shown(caller: SignedIn, file_id: str) -> FileReply:
        return shown_file(await found(caller.tenant, file_id))

    @routes.get("/v1/files/{file_id}/content", roles=CLIENTS, summary="Download a file", reply=str)
    async def content(caller: SignedIn, file_id: str) -> Response:
        file = await found(caller.tenant, file_id)
        return StreamingResponse(files.pages(file), media_type="text/plain; charset=utf-8")  # it reads in a thread

    @routes.delete("/v1/files/{file_id}", roles=CLIENTS, summary="Delete a file", errors=(409,))
    async def delete(caller: SignedIn, file_id: str) -> FileDeletedReply:
        file = await found(caller.tenant, file_id)
        if (user := await asyncio.to_thread(files.user_of, file_id)) is not None:
            message = f"The batch {user} reads this file; allowed: to cancel it first, or to wait for its end"
            raise RequestRefused(message, code="file_in_use", status=409)
        await asyncio.to_thread(files.remove, file)
        context.emit(caller.act("file.deleted", file_id))
        for corpora in _corpora(file, caller, models):
            await corpora.tick()
        return FileDeletedReply(id=file_id)

    return routes.all


def _batch_routes(context: Context, runner: BatchRunner, models: Models) -> Sequence[Route]:
    routes, table = Routes(), runner.table

    async def found(tenant: str, batch_id: str, param: str | None = None) -> StoredBatch:
        batch = await asyncio.to_thread(table.get, tenant, batch_id)
        return batch or _not_found(f"No batch found with id {batch_id[:64]!r}", param)

    async def reply(batch: StoredBatch) -> BatchReply:
        counts = await asyncio.to_thread(table.counts, batch.batch_id) if batch.status in RUNNING else {}
        return shown_batch(batch, counts)

    @routes.post("/v1/batches", roles=CLIENTS, summary="Run the requests of a file", errors=(409,))
    async def create(request: Request, body: Annotated[BatchBody, read_body(BatchBody)]) -> BatchReply:
        caller = caller_of(request)
        models.of(None, caller).admission.admit_small(request)
        if await asyncio.to_thread(runner.files.get, caller.tenant, body.input_file_id) is None:
            _not_found(f"No such File object: {body.input_file_id[:64]}", "input_file_id")
        await _check_model(runner, body.input_file_id, caller, models)
        if body.verify is not None:
            if body.endpoint != CHAT_ROUTE:
                message = f"endpoint is {body.endpoint!r} with verify; allowed: {CHAT_ROUTE}"
                raise InvalidParameter(message, param="endpoint")
            models.of(None, caller).writers.allowed(body.verify.writer, None)
        now, after = time.time(), body.output_expires_after
        batch = StoredBatch(
            batch_id=f"batch_{uuid4().hex}",
            tenant=caller.tenant,
            key_id=caller.key_id,
            model="",
            input_file_id=body.input_file_id,
            document={
                **body.model_dump(include={"endpoint", "completion_window", "metadata", "verify"}),
                "output_expires_s": after and after.seconds,
            },
            status="validating",
            created_at=now,
            expires_at=now + WINDOW_S,
        )
        if not await asyncio.to_thread(table.add, batch, most_running=MOST_RUNNING):
            message = f"{MOST_RUNNING} batches of this tenant have not ended; allowed: to wait for one or cancel one."
            raise RequestRefused(message, code="too_many_batches", status=429, headers={"retry-after": "60"})
        context.emit(caller.act("batch.created", batch.batch_id))
        runner.poll_now()
        return shown_batch(batch, {})

    @routes.get("/v1/batches", roles=CLIENTS, summary="List batches, the newest first")
    async def listed(caller: SignedIn, query: _BatchesQuery) -> PageReply[BatchReply]:
        if query.after:
            await found(caller.tenant, query.after, "after")
        rows = await asyncio.to_thread(table.newest, caller.tenant, after=query.after, most=query.limit + 1)
        return page([await reply(row) for row in rows], query.limit)

    @routes.get("/v1/batches/{batch_id}", roles=CLIENTS, summary="Show a batch")
    async def shown(caller: SignedIn, batch_id: str) -> BatchReply:
        return await reply(await found(caller.tenant, batch_id))

    @routes.post("/v1/batches/{batch_id}/cancel", roles=CLIENTS, summary="Cancel a batch", errors=(409,))
    async def cancel(caller: SignedIn, batch_id: str) -> BatchReply:
        batch = await found(caller.tenant, batch_id)
        if await asyncio.to_thread(table.change, batch_id, "cancelling", ["validating", "in_progress"]):
            context.emit(caller.act("batch.cancelled", batch_id))
            runner.poll_now()
        elif batch.status not in ("cancelling", "cancelled", "failed"):  # of a failed one there is nothing to cancel
            message = f"The batch is {batch.status}; allowed: to cancel one that has not ended"
            raise RequestRefused(message, code="batch_ended", status=409)
        return await reply(await found(caller.tenant, batch_id))

    return routes.all


async def _check_model(runner: BatchRunner, file_id: str, caller: Caller, models: Models) -> None:
    """Raise at once where the model of the first line is not served, or not to this caller."""
    start = await asyncio.to_thread(runner.files.bytes_of, file_id, 0, PART_BYTES)
    line, intake = start.strip().partition(b"\n")[0], models.of(None, caller).intake
    try:
        work = partial(parse_line, line, intake.uploads)
        model = (await intake.large_work.run(caller.tenant, len(line), work, gives_way=False)).body.get("model")
    except RequestRefused:  # the batch fails by name when the file is read
        return
    if isinstance(model, str):
        models.of(model, caller)


def _not_found(message: str, param: str | None = None) -> NoReturn:
    raise RequestRefused(message, code="not_found", param=param, status=404)
