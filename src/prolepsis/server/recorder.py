"""Records of requests that have ended: what the store gets to see of each."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prolepsis.core.errors import ProlepsisError
from prolepsis.core.stats import RequestStats
from prolepsis.server.admitted import Admitted
from prolepsis.server.door.entry import Entry
from prolepsis.server.errors import RequestAborted
from prolepsis.server.formats import Json
from prolepsis.server.output.boundary import Delivery
from prolepsis.store.request_record import RequestAbout, RequestEnd, request_record
from prolepsis.store.store import Store


class Recorder:
    """Hands a sampled share of requests to the store's writer, without waiting for it; without a store, none."""

    def __init__(self, store: Store | None = None, sample: float = 1.0) -> None:
        self._writer = store.writer if store else None
        self._sample = sample

    @asynccontextmanager
    async def record(self, route: str, admitted: Admitted, entry: Entry, delivery: Delivery) -> AsyncIterator[None]:
        """Record the request of `entry`, which has ended when the block is left, by how it is left."""
        end: RequestEnd = "finished"
        error = None
        try:
            yield
        except RequestAborted:
            end = "aborted"
            raise
        except ProlepsisError as failure:
            end, error = "failed", failure.code
            raise
        except (asyncio.CancelledError, GeneratorExit):
            end = "finished" if entry.client.finished else "left"
            raise
        except BaseException as failure:
            end, error = "failed", type(failure).__name__
            raise
        finally:
            if self._writer is not None and random.random() < self._sample:
                self._writer.offer(
                    request_record(_about(route, admitted, entry), end, _stats(entry, delivery), error=error)
                )

    def readiness(self) -> Json | None:
        """Return what readiness says of the store, None without one: no reason to serve or not, and no addresses."""
        if self._writer is None:
            return None
        health = self._writer.health()
        return {
            "ok": health.ok,
            "num_queued": health.num_queued,
            "written": health.written,
            "dropped": health.dropped,
        }


def _about(route: str, admitted: Admitted, entry: Entry) -> RequestAbout:
    caller, ruling, flag = admitted.caller, admitted.speculation.ruling, admitted.speculation.flag
    return RequestAbout(
        request_id=entry.request.request_id,
        answer_id=admitted.answer_id,
        tenant=caller.tenant,
        key_id=caller.key_id,
        tier=caller.tier,
        route=route,
        model=admitted.model,
        policy_rule=ruling.rule if ruling else None,
        policy_version=ruling.policy_version if ruling else None,
        slice=entry.request.slice or None,
        rollout_run=ruling.pin.rollout_run if ruling and ruling.pin else None,
        arm=ruling.pin.place if ruling and ruling.pin else None,
        flags={flag.key: {"variant": flag.variant, "reason": flag.reason}} if flag else {},
    )


def _stats(entry: Entry, delivery: Delivery) -> RequestStats:
    """Return the engine's counts; of a request whose end nobody waited for, the tokens that came."""
    if entry.client.ended is not None:
        return delivery.filled(entry.client.ended.stats)
    return RequestStats(
        num_prompt_tokens=len(entry.request.prompt_token_ids), num_output_tokens=entry.client.num_tokens
    )
