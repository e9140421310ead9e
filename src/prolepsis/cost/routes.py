"""Shape of /admin/cost, and how costs are shown in it."""

from collections.abc import Sequence
from typing import Literal

from prolepsis.core.stats import ProposerMemory
from prolepsis.cost.comparison import Compared, Saving
from prolepsis.cost.meter import DIMENSIONS, Dimension, Forecast, Spent
from prolepsis.cost.runtime import Costs, PriceInUse, RolloutCompared
from prolepsis.web.fields import Reply
from prolepsis.web.routes import READERS, Route, Routes


class PriceReply(Reply):
    """What an hour of the device costs, in `currency`."""

    name: str
    version: str
    """Of the price book."""
    currency: str
    region: str
    term: Literal["on_demand", "reserved"]
    per_device_hour: float
    overheads: dict[str, float]
    per_hour: float


class SpentReply(Reply):
    """Sums over requests since the server started; amounts are null without a price book."""

    value: str
    num_requests: int
    num_output_tokens: int
    device_s: dict[Literal["prefill", "plain", "verify", "propose", "host"], float]
    total_device_s: float
    device_s_per_token: float | None
    amount: float | None
    amount_per_million_tokens: float | None
    predicted_plain_s: float
    saved_s: float
    """Predicted less total; negative where speculation costs more."""


class SavingReply(Reply):
    """1 - cost / cost without speculation, negative where it costs more; bounds of 95 %, null where there is none."""

    estimate: float | None
    lower: float | None
    upper: float | None


class ComparedReply(Reply):
    by: Literal["all", "route", "tenant", "proposer"]
    value: str
    num_speculating: int
    num_control: int
    device_s_per_token: float | None
    control_device_s_per_token: float | None
    predicted_device_s_per_token: float | None
    saved: SavingReply
    """Against the control."""
    randomised: bool
    """Whether chance alone decided which of these requests speculate; else `saved` has no bounds."""
    saved_by_prediction: SavingReply


class RolloutComparedReply(Reply):
    rollout: str
    run: int
    stage_number: int
    share: float
    groups: list[ComparedReply]


class MemoryReply(Reply):
    """Bytes beside the target's; the amount is its share of the device's memory, of an hour's price."""

    proposer: str
    weights: int
    kv: int
    index: int
    total: int
    amount_per_hour: float | None


class ForecastReply(Reply):
    looks_back_s: float
    busy: float
    device_hours: float
    num_output_tokens: float
    saved_device_hours: float
    amount_of_use: float | None
    amount_of_device: float | None
    saved_amount: float | None
    assumes: str


class CostReply(Reply):
    price: PriceReply | None
    """null: no price book; device seconds only."""
    total: SpentReply
    by_route: list[SpentReply]
    by_tenant: list[SpentReply]
    by_proposer: list[SpentReply]
    rollouts: list[RolloutComparedReply]
    memory: list[MemoryReply]
    forecast: ForecastReply | None
    """Of a month; null in the first minute."""


def shown_costs(costs: Costs, compared: Sequence[RolloutCompared]) -> CostReply:
    price = costs.price
    by = {dimension: _shown_by(costs, dimension, price) for dimension in DIMENSIONS}
    forecast = costs.forecast()
    return CostReply(
        price=_price(price) if price else None,
        total=_spent("", costs.spending.total, price),
        by_route=by["route"],
        by_tenant=by["tenant"],
        by_proposer=by["proposer"],
        rollouts=[_rollout(one) for one in compared],
        memory=[_memory(one, price) for one in costs.memory],
        forecast=_forecast(forecast) if forecast else None,
    )


def _price(used: PriceInUse) -> PriceReply:
    price = used.price
    return PriceReply(
        name=price.name,
        version=used.version,
        currency=used.currency,
        region=price.region,
        term=price.term,
        per_device_hour=price.per_device_hour,
        overheads=price.overheads,
        per_hour=price.per_hour,
    )


def _shown_by(costs: Costs, dimension: Dimension, price: PriceInUse | None) -> list[SpentReply]:
    """Return the sums of a dimension, the dearest first."""
    ordered = sorted(costs.spending.by[dimension].items(), key=lambda item: -item[1].device.total)
    return [_spent(value, spent, price) for value, spent in ordered]


def _spent(value: str, spent: Spent, used: PriceInUse | None) -> SpentReply:
    total, per_token = spent.device.total, spent.seconds_per_token
    per_second = used.price.per_second if used else None
    return SpentReply(
        value=value,
        num_requests=spent.num_requests,
        num_output_tokens=spent.num_output_tokens,
        device_s=spent.device.by_kind(),
        total_device_s=total,
        device_s_per_token=per_token,
        amount=None if per_second is None else total * per_second,
        amount_per_million_tokens=None if per_second is None or per_token is None else 1e6 * per_token * per_second,
        predicted_plain_s=spent.device.predicted_plain,
        saved_s=spent.saved_s,
    )


def _rollout(one: RolloutCompared) -> RolloutComparedReply:
    contest = one.contest
    return RolloutComparedReply(
        rollout=contest.rollout_id,
        run=contest.run,
        stage_number=contest.stage,
        share=contest.share,
        groups=[_compared(group) for group in one.groups],
    )


def _compared(one: Compared) -> ComparedReply:
    return ComparedReply(
        by=one.by,
        value=one.value,
        num_speculating=one.num_speculating,
        num_control=one.num_control,
        device_s_per_token=one.seconds_per_token,
        control_device_s_per_token=one.control_seconds_per_token,
        predicted_device_s_per_token=one.predicted_seconds_per_token,
        saved=_saving(one.saved),
        randomised=one.randomised,
        saved_by_prediction=_saving(one.saved_by_prediction),
    )


def _saving(saving: Saving) -> SavingReply:
    return SavingReply(estimate=saving.estimate, lower=saving.lower, upper=saving.upper)


def _memory(one: ProposerMemory, used: PriceInUse | None) -> MemoryReply:
    return MemoryReply(
        proposer=one.proposer,
        weights=one.weights,
        kv=one.kv,
        index=one.index,
        total=one.total,
        amount_per_hour=used.price.memory_per_hour(one.total) if used else None,
    )


def _forecast(one: Forecast) -> ForecastReply:
    return ForecastReply(
        looks_back_s=one.looks_back_s,
        busy=one.busy,
        device_hours=one.device_hours,
        num_output_tokens=one.num_output_tokens,
        saved_device_hours=one.saved_device_hours,
        amount_of_use=one.amount_of_use,
        amount_of_device=one.amount_of_device,
        saved_amount=one.saved_amount,
        assumes=one.assumes,
    )


def cost_routes(costs: Costs) -> Sequence[Route]:
    routes = Routes()

    @routes.get("/admin/cost", roles=READERS, summary="Cost of requests, savings from speculation, and a forecast")
    async def cost() -> CostReply:
        return shown_costs(costs, await costs.compared())

    return routes.all
