"""Drafts for engines at a queue, in place of connections; `prolepsis.engine.drafting.remote.queue` says what is there.

Each turn takes what waits, as one call of the proposer; of several rounds of one engine the last is answered.
"""

import asyncio
from contextlib import suppress
from typing import Any

import structlog
from cryptography.fernet import InvalidToken
from redis.exceptions import RedisError, ResponseError

from prolepsis.core.codec import FrameReader, ProtocolError
from prolepsis.engine.drafting.remote import messages
from prolepsis.engine.drafting.remote.messages import FROM_ENGINE, SILENT_S, DraftCall, Drafts, Extend, Open, SentDraft
from prolepsis.engine.drafting.remote.queue import Queue
from prolepsis.remote.propose.server import EngineSequence, ProposeServer

log = structlog.get_logger(__name__)

_GROUP = "propose-servers"
_KEPT_S = 30  # without a round for so long a sequence has ended, or goes on at another server
_USEFUL_MS = round(1000 * SILENT_S)
_Rounds = dict[bytes, tuple[int, list[tuple[EngineSequence, int]]]]  # by engine; with the most nodes of drafts


class QueueServer:
    """Takes rounds of engines from a queue, and leaves drafts for them there."""

    def __init__(self, server: ProposeServer, queue: Queue) -> None:
        self._server, self._queue = server, queue
        self._sequences: dict[tuple[bytes, int], EngineSequence] = {}  # by engine and number, the last used last

    async def run(self) -> None:
        """Draft until cancelled; without Redis, try again and again."""
        task = asyncio.current_task()
        while task is not None and not task.cancelling():  # `wait_for` of Python 3.11 may swallow what cancels it
            try:
                async with self._queue.client() as redis:
                    with suppress(ResponseError):  # it is there
                        await redis.xgroup_create(self._queue.stream, _GROUP, id="0", mkstream=True)
                    log.info("queue_joined", proposer=self._server.proposer.name)
                    turn = redis.pipeline(transaction=False)
                    while not task.cancelling():
                        await self._turn(turn)
            except (RedisError, OSError) as error:
                log.warning("queue_lost", reason=f"{type(error).__name__} {error}")
                await asyncio.sleep(1.0)

    async def _turn(self, turn: Any) -> None:
        """Leave what the last turn drafted, say that a server is here, and draft for what comes; in one round trip."""
        stream, limits = self._queue.stream, self._server.limits.terms
        turn.set(f"{stream}:terms", messages.TERMS.encode_body(limits), px=_USEFUL_MS)
        turn.xreadgroup(_GROUP, "any", {stream: ">"}, count=64, block=1000, noack=True)
        *_, taken, (now_s, _) = await turn.time().execute()
        rounds: _Rounds = {}
        for name, entry in [entry for _, entries in taken for entry in entries]:
            turn.xdel(stream, name)
            if 1000 * now_s - int(name.partition(b"-")[0]) < _USEFUL_MS:
                self._take_in(entry, now_s, rounds)
        drafts = iter(await self._server.drafts([wish for _, wishes in rounds.values() for wish in wishes]))
        for engine, (number, wishes) in rounds.items():
            made = [(sequence, draft) for sequence, _ in wishes if (draft := next(drafts)) is not None]
            sent = tuple(SentDraft(sequence.number, len(sequence.tokens), draft) for sequence, draft in made)
            frame = self._queue.seal(b"drafts" + engine).encrypt(messages.FROM_SERVER.encode(Drafts(number, sent)))
            turn.rpush(place := f"{stream}:{engine.hex()}", frame).pexpire(place, _USEFUL_MS)
        for of_engine, sequence in list(self._sequences.items()):
            if now_s - sequence.used_s > _KEPT_S or len(self._sequences) > limits.most_sequences:
                self._server.proposer.forget(self._sequences.pop(of_engine))

    def _take_in(self, entry: dict[bytes, bytes], now_s: int, rounds: _Rounds) -> None:
        most = self._server.limits.terms.most_draft_tokens
        try:
            frames = self._queue.seal(engine := entry[b"engine"]).decrypt(entry[b"frames"])
            for message in map(FROM_ENGINE.decode, FrameReader(messages.MOST_FROM_ENGINE).feed(frames)):
                match message:
                    case Open(number):
                        old = self._sequences.pop((engine, number), None)
                        sequence = self._sequences[engine, number] = old or EngineSequence.of(engine.hex(), message)
                        sequence.used_s = now_s
                    case Extend(number, tokens):
                        sequence = self._sequences[engine, number]
                        sequence.tokens += tokens[len(sequence.tokens) :]
                        sequence.is_unfit |= max(tokens, default=0) >= self._server.model.vocab_size
                    case DraftCall(number, wishes):
                        named = [(self._sequences[engine, each], min(max(1, wish), most)) for each, wish in wishes]
                        rounds[engine] = number, named
        except (InvalidToken, KeyError, ProtocolError) as error:
            log.warning("engine_refused", reason=f"{type(error).__name__} {error}")
