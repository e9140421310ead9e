"""Records of requests that have ended: what the store gets to see of each."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prolepsis.api.admission.group import Entry
from prolepsis.api.openai.prepared import Admitted
from prolepsis.api.openai.usage import Json
from prolepsis.api.output.boundary import Delivery
from prolepsis.audit.requests import Ended, RequestAudit
from prolepsis.core.errors import ProlepsisError
from prolepsis.core.stats import RequestStats
from prolepsis.correctness.replay import recording
from prolepsis.cost.runtime import Costs, PriceInUse
from prolepsis.store.records import RequestAbout, RequestEnd, request_record
from prolepsis.store.store import Store
from prolepsis.web.errors import RequestAborted


class Recorder:
    """Hands a sampled share of requests to the store's writer, without waiting for it; without a store, none.

    What each of them cost is counted in `costs`.
    """

    def __init__(
        self,
        store: Store | None = None,
        sample: float = 1.0,
        *,
        costs: Costs | None = None,
        audit: RequestAudit | None = None,
    ) -> None:
        """`audit`: what keeps more of requests, in the audit log; None keeps no more."""
        self._writer = store.writer if store else None
        self._sample = sample
        self._costs = costs
        self._audit = audit

    @asynccontextmanager
    async def record(self, route: str, admitted: Admitted, entry: Entry, delivery: Delivery) -> AsyncIterator[None]:
        """Record the request of `entry`, which has ended when the block is left, by how it is left."""
        end: RequestEnd = "finished"
        error = None
        content = self._audit.draw(admitted) if self._audit is not None else None
        if content is not None:
            entry.client.keep(drafts=True)
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
            heard = entry.client.ended
            if self._costs is not None and heard is not None:
                self._costs.observe(route, admitted, heard.stats, finished=end == "finished")
            writer = self._writer if random.random() < self._sample else None
            if writer is not None or content is not None:
                about = _about(route, admitted, entry, self._costs.price if self._costs else None)
                stats = _stats(entry, delivery)
            if writer is not None:
                device = heard.stats.device if heard else None
                writer.offer(request_record(about, end, stats, error=error, device=device))
            if self._audit is not None and content is not None:
                self._audit.take(_ended(about, stats, entry, end, error), content)

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


def _about(route: str, admitted: Admitted, entry: Entry, price: PriceInUse | None) -> RequestAbout:
    caller, ruling, flag = admitted.caller, admitted.speculation.ruling, admitted.speculation.flag
    flags = (*(ruling.flags if ruling else ()), *((flag,) if flag else ()))
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
        traffic_class=entry.request.traffic_class or None,
        rollout_run=ruling.pin.rollout_run if ruling and ruling.pin else None,
        arm=ruling.pin.place if ruling and ruling.pin else None,
        flags={one.key: {"variant": one.variant, "reason": one.reason} for one in flags},
        prices_version=price.label if price else None,
    )


def _ended(about: RequestAbout, stats: RequestStats, entry: Entry, end: RequestEnd, error: str | None) -> Ended:
    client = entry.client
    events = tuple(client.stored.tokens if client.stored else client.kept)
    return Ended(about, end, error, stats, recording(entry.request, events), events)


def _stats(entry: Entry, delivery: Delivery) -> RequestStats:
    """Return the engine's counts; of a request whose end nobody waited for, the tokens that came."""
    if entry.client.ended is not None:
        return delivery.filled(entry.client.ended.stats)
    return RequestStats(
        num_prompt_tokens=len(entry.request.prompt_token_ids), num_output_tokens=entry.client.num_tokens
    )
