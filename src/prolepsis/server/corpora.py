"""Corpora: texts that tenants, or operators for a route, upload for the proposer `corpus`; /admin/corpora shows all.

Requests without a salt draft from the newest examples of their tenant as well, so that a restart loses less.
"""

import asyncio
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain

from prolepsis.control.policy.learning_terms import LearningTerms
from prolepsis.control.store.examples import EXAMPLES, ExampleTable
from prolepsis.control.store.tenant_files import FileTable, TenantFile
from prolepsis.control.store.turns import forgotten_at
from prolepsis.control.web.caller import Caller, SignedIn
from prolepsis.control.web.context import Context
from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.feature import Feature
from prolepsis.control.web.intake import Intake
from prolepsis.control.web.refusals import too_large
from prolepsis.control.web.routes import OPERATORS, READERS, Route, Routes
from prolepsis.control.web.skipped import Skipped
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.errors import StoreUnavailable
from prolepsis.core.facts import RequestFacts, traffic_class_of
from prolepsis.core.messages import SetCorpora, owners
from prolepsis.core.requests import cache_salt_of
from prolepsis.core.telemetry.declare import gauge
from prolepsis.engine.text.tokenizer import Tokenizer
from prolepsis.server.known import KNOWN

PURPOSE = "corpus"
"""The purpose of their files; with `:` and a path: of those of a route."""
MOST_BYTES = 4 * 2**20
EXAMPLES_S = 3600.0
"""Seconds between two looks at the newest examples of tenants who agree to learning."""
FORGETTING_S = 60.0
"""Seconds for which no example is drafted from, as some are being forgotten."""
_BYTES_OF_ID = 4


@dataclass(frozen=True, slots=True)
class CorpusReply:
    id: str
    owner: str
    filename: str
    bytes: int
    tokens: int | None  # null: it has not been tokenised yet
    created_at: int
    expires_at: int
    fault: str | None  # reason why nothing is drafted from it, if so


class Corpora(Feature):
    """Keeps an engine's corpora as the store has them: those of other servers, expired and deleted ones too.

    Each is tokenised once. Belongs to one event loop.
    """

    name = "corpora"
    period_s = 2.0
    _skipped = Skipped()
    """The application's, once it is put together."""

    def __init__(
        self,
        context: Context,
        tokenizer: Tokenizer,
        intake: Intake,
        blocks: Callable[[], Mapping[str, LearningTerms]] = dict,
    ) -> None:
        """`blocks`: terms of learning by rule, of the policy in use."""
        self.routes = _routes(self, context)
        self.files = FileTable(context.database)
        self._database = context.database
        self._is_kept = context.database.is_kept
        self._skipped = context.skipped
        self._client = context.client
        self._tokenizer = tokenizer
        self._large_work = intake.large_work
        self._most_of_owner = context.config.corpus_tokens
        self._most = context.config.limits.corpus_tokens_in_all
        self._ids: dict[str, bytes] = {}
        self._sent: dict[str, tuple[bytes, ...]] = {}
        """Texts by owner, as the engine has them."""
        self._blocks = blocks
        self._examples: dict[str, list[bytes]] = {}  # by tenant
        self._monotonic = context.monotonic
        self._look_at = self._forgotten = 0.0
        self._turn = asyncio.Lock()
        self._tokens = gauge(context.registry, "corpus_tokens", "Tokens of the corpora that the engine may draft from")

    async def tick(self) -> None:
        if self._is_kept:
            with suppress(StoreUnavailable):
                async with self._turn:
                    texts = defaultdict[str, list[bytes]](list)
                    files = await self._usable()
                    self._ids = {file.file_id: self._ids[file.file_id] for file in files}
                    for file in files:
                        texts[owner_of(file)].append(self._ids[file.file_id])
                    if (blocks := self._blocks()) or self._examples:
                        room = self._most - sum(map(_number, self._ids.values()))
                        texts.update(await asyncio.to_thread(self._of_examples, blocks, room))
                    for owner in {*texts, *self._sent}:
                        newest = _newest(texts[owner], self._most_of_owner)
                        if newest != self._sent.get(owner, ()):
                            self._client.send(SetCorpora(owner, newest))
                        self._sent[owner] = newest
                    self._sent = {owner: sent for owner, sent in self._sent.items() if sent}
                    self._tokens.set(sum(_number(ids) for sent in self._sent.values() for ids in sent))

    async def tokenise(self, file: TenantFile, read: Callable[[], bytes]) -> bytes:
        """Return the token ids of a file that has arrived, which `read` gives; raises `RequestRefused` if it is no text
        or too large.
        """
        if file.num_bytes > MOST_BYTES:
            raise too_large("body", f"{MOST_BYTES} bytes of a corpus")
        return await self._large_work.off_loop(file.tenant, lambda: self._token_ids(read()))

    async def check(self, file: TenantFile, given: bytes = b"") -> None:
        """Raise `RequestRefused` if there are too many tokens, with those `given` of a file that is not kept yet."""
        held_by = Counter[str]()
        for corpus in await self._usable():
            held_by[owner_of(corpus)] += _number(self._ids[corpus.file_id])
        for held, most, setting in (
            (held_by[owner_of(file)], self._most_of_owner, "corpus_tokens"),
            (held_by.total(), self._most, "limits.corpus_tokens_in_all"),
        ):
            if _number(given) + held > most:
                counts = f"The corpus has {_number(given)} tokens, those before it {held}"
                message = f"{counts}; allowed: {most} together ({setting})."
                raise RequestRefused(message, code="corpora_too_large", param="file", status=413)

    async def take(self, file: TenantFile, given: bytes) -> None:
        """Let the engine draft from a file that is kept now, by its token ids."""
        self._ids[file.file_id] = given
        await self.tick()

    async def all(self) -> list[TenantFile]:
        return await asyncio.to_thread(self.files.of_purposes, PURPOSE)

    def shown(self, file: TenantFile) -> CorpusReply:
        ids, created, expires = self._ids.get(file.file_id), int(file.created_at), int(file.expires_at)
        tokens = None if ids is None else _number(ids)
        fault, shown = self._skipped.error_of(self.name, file.file_id), (file.filename, file.num_bytes)
        return CorpusReply(file.file_id, owner_of(file), *shown, tokens, created, expires, fault)

    def _of_examples(self, blocks: Mapping[str, LearningTerms], room: int) -> Mapping[str, list[bytes]]:
        """Return, by owner, the newest examples of tenants who agree to learning, with at most `room` tokens."""
        with self._database.read() as connection:
            now, forgotten = self._monotonic(), forgotten_at(connection, EXAMPLES)
        if forgotten != self._forgotten:
            self._examples, self._forgotten, self._look_at = {}, forgotten, now + FORGETTING_S
        held = sum(map(_number, chain.from_iterable(self._examples.values())))
        if now >= self._look_at or held > max(0, room):
            self._examples, self._look_at = self._read_examples(blocks, room), now + EXAMPLES_S
        agreed = {tenant for terms in blocks.values() for tenant in terms.tenants}
        mine = {tenant: texts for tenant, texts in self._examples.items() if tenant in agreed}
        return {owners(tenant, "", cache_salt_of(tenant, None))[2]: texts for tenant, texts in mine.items()}

    def _read_examples(self, blocks: Mapping[str, LearningTerms], room: int) -> dict[str, list[bytes]]:
        table, found = ExampleTable(self._database), defaultdict[str, list[bytes]](list)
        for rule, tenant in [(rule, tenant) for rule, terms in blocks.items() for tenant in terms.tenants]:
            for example in table.read(rule, tenants=[tenant], most_tokens=min(room, self._most_of_owner)):
                if example.tokenizer == self._client.info.tokenizer:
                    ids = array("i", (*example.prompt, *example.answer)).tobytes()
                    found[tenant].append(ids)
                    room -= _number(ids)
        return found

    async def _usable(self) -> list[TenantFile]:
        """Return the corpora of all owners that are tokenised, and tokenise those that are new."""
        files = await self.all()
        for file in self._skipped.due(self.name, files, lambda corpus: corpus.file_id):
            if file.file_id not in self._ids:
                with self._skipped.contained(self.name, file.file_id, file.tenant):
                    self._ids[file.file_id] = await self.tokenise(file, partial(b"".join, self.files.pages(file)))
        return [file for file in files if file.file_id in self._ids]

    def _token_ids(self, content: bytes) -> bytes:
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            message = f"The corpus is not UTF-8: {error.reason} at byte {error.start}; allowed: a text in UTF-8."
            raise RequestRefused(message, code="invalid_text", param="file") from None
        return array("i", self._tokenizer.encode(text, add_special_tokens=False)).tobytes()


def purpose_of(route: str | None, caller: Caller) -> str:
    """Return the purpose of a corpus for a route, or of the caller's tenant; raises `RequestRefused`."""
    if route is None:
        return PURPOSE
    if not caller.has("operator"):
        message = "A corpus of a route serves all tenants; allowed for operators, or without route for your own tenant."
        raise RequestRefused(message, code="wrong_role", param="route", status=403)
    if route not in (KNOWN.route or ()):
        message = f"route is {route[:64]!r}; allowed: {', '.join(KNOWN.route or ())}"
        raise RequestRefused(message, code="unknown_route", param="route")
    return f"{PURPOSE}:{route}"


def is_corpus(file: TenantFile) -> bool:
    return file.purpose.partition(":")[0] == PURPOSE


def owner_of(file: TenantFile) -> str:
    """Return whose requests may draft from a corpus, as the engine names it."""
    route = file.purpose.partition(":")[2]
    of_tenant, of_route, _ = owners(file.tenant, traffic_class_of(RequestFacts(route=route)), "")
    return of_route if route else of_tenant


def _newest(texts: Sequence[bytes], most: int) -> tuple[bytes, ...]:
    """Return the last texts that have at most so many tokens together: other servers may have taken more."""
    first, room = len(texts), most
    while first and (room := room - _number(texts[first - 1])) >= 0:
        first -= 1
    return tuple(texts[first:])


def _number(ids: bytes) -> int:
    return len(ids) // _BYTES_OF_ID


def _routes(feature: Corpora, context: Context) -> Sequence[Route]:
    routes = Routes()

    @routes.get("/admin/corpora", roles=READERS, summary="Corpora of all tenants and routes, the oldest first")
    async def listed() -> list[CorpusReply]:
        return [feature.shown(file) for file in await feature.all()]

    @routes.delete("/admin/corpora/{file_id}", roles=OPERATORS, summary="Remove a corpus", errors=(404,))
    async def remove(file_id: str, caller: SignedIn) -> CorpusReply:
        file = next((corpus for corpus in await feature.all() if corpus.file_id == file_id), None)
        if file is None:
            message = f"No such corpus: {file_id[:64]}"
            raise RequestRefused(message, code="not_found", param="file_id", status=404)
        await asyncio.to_thread(feature.files.remove, file)
        context.emit(AuditEvent(actor=caller.actor, action="corpus.removed", subject=file_id, tenant=file.tenant))
        shown = feature.shown(file)
        await feature.tick()
        return shown

    return routes.all
