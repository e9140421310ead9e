"""Records of requests that have ended, for the store."""

import random
from collections.abc import Callable

from prolepsis.control.cost.runtime import CostFeature
from prolepsis.control.policy.runtime import Policies
from prolepsis.control.store.records import RequestRetry, request_record
from prolepsis.control.store.store import Store
from prolepsis.control.web.context import Context
from prolepsis.control.web.feature import Feature
from prolepsis.control.web.fields import Reply
from prolepsis.core.ended import RequestEnded


class StoreState(Reply):
    """Health of the store, as readiness shows it."""

    ok: bool
    num_queued: int
    written: dict[str, int]
    dropped: dict[str, int]


class Recorder(Feature):
    """Hands a sampled share of requests to the store's writer, without waiting for it; none that the policy forbids."""

    name = "records"

    def __init__(
        self, store: Store, sample: float, prices_version: Callable[[], str | None], records: Callable[[str], bool]
    ) -> None:
        """`prices_version` names the price in use; `records`: whether the policy lets records of a tenant be kept."""
        self._writer = store.writer
        self._sample = sample
        self._prices_version = prices_version
        self._records = records

    def on_request_end(self, ended: RequestEnded) -> None:
        if not (self._writer.is_on and ended.about.is_recorded):
            return
        for prompt in ended.prompts:
            if random.random() < self._sample:
                version = self._prices_version()
                self._writer.offer(request_record(ended.about, prompt, prices_version=version))

    def retried(self, retry: RequestRetry) -> None:
        """Record the names of a retry, by which the request is found whose answer it got."""
        if self._records(retry.tenant):
            self._writer.offer(retry)

    def readiness(self) -> StoreState | None:
        """Return what readiness says of the store, without addresses; None without one. It never makes it unready."""
        if not self._writer.is_on:
            return None
        return StoreState.model_validate(self._writer.health(), from_attributes=True)


def feature(context: Context, costs: CostFeature, policies: Policies) -> Recorder:
    sample = context.config.store_sample
    return Recorder(context.store, sample, lambda: costs.price.label if costs.price else None, policies.records)
