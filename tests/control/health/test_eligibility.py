"""Eligibility of traffic classes, and while serving."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from prolepsis.control.cost.prices import PriceFile
from prolepsis.control.health.eligibility import (
    DraftLimits,
    Eligibility,
    EligibilityTerms,
    Judged,
    StartTerms,
    Threshold,
)
from prolepsis.control.policy.check import InvalidPolicy
from prolepsis.control.store.store import Store
from prolepsis.core.config import ServerConfig
from prolepsis.core.stats import DeviceSeconds, ProposerCounts, RequestStats
from prolepsis.server.openai.replies import MetricsReply
from tests.control.policy.policies import policy
from tests.fake_client import INFO
from tests.server.fakes import FakeEngine
from tests.world.site import NO_START, Site

CHAT, CODE = "chat-completions/standard/free/short", "completions/standard/free/short"
TERMS = EligibilityTerms(acceptance_rate=Threshold(min=0.7, until=0.6))


def ended(rate: float, num_drafts: int = 16, *, proposer: str = "suffix", shadow: bool = False) -> RequestStats:
    """Return a request whose drafts had ten tokens each."""
    counts = ProposerCounts(num_drafts, 10 * num_drafts, round(10 * num_drafts * rate))
    stats = RequestStats(num_output_tokens=20 * num_drafts, device=DeviceSeconds(plain=8.0, predicted_plain=10.0))
    (stats.shadow if shadow else stats.proposers)[proposer] = counts
    return stats


class Judge:
    """An `Eligibility` with versions and a price that are set by hand."""

    def __init__(self, *, has_experts: bool = False, start: StartTerms | None = None) -> None:
        self.versions: Mapping[str, str] = {}
        self.changes: list[Judged] = []
        self.price_per_s: float | None = None
        self.eligibility = Eligibility(
            lambda name: self.versions.get(name, "1"),
            has_experts=has_experts,
            price_per_s=lambda: self.price_per_s,
            start=start,
            changed=self.changes.append,
        )

    def see(self, rate: float, number: int = 1, *, of: str = CHAT, **given: object) -> "Judge":
        for _ in range(number):
            self.eligibility.add(of, ended(rate, **given))  # type: ignore[arg-type]
        return self

    def limits(
        self,
        terms: EligibilityTerms | None = TERMS,
        *,
        of: str = CHAT,
        proposers: tuple[str, ...] | None = None,
        start: StartTerms | None = None,
    ) -> DraftLimits:
        return self.eligibility.limits(of, proposers, terms, start)


@pytest.mark.parametrize("shadow", [True, False])
def test_a_class_is_eligible_from_min_on_until_it_is_below_until(shadow: bool) -> None:
    judge = Judge()
    assert judge.limits() == DraftLimits(("unmeasured",), verifies=False)
    assert judge.see(0.9, 3, shadow=shadow).limits() == DraftLimits(("unmeasured",), verifies=False), (
        "48 drafts are few"
    )
    assert judge.see(0.9, shadow=shadow).limits() == DraftLimits()
    assert judge.limits(of=CODE) == DraftLimits(("unmeasured",), verifies=False), "each class by its own drafts"
    assert judge.see(0.65, 200, shadow=shadow).limits() == DraftLimits(), "between the two it stays"
    assert judge.see(0.5, 200, shadow=shadow).limits() == DraftLimits(("low_acceptance",), verifies=False)
    assert judge.see(0.65, 200, shadow=shadow).limits() == DraftLimits(("low_acceptance",), verifies=False)
    assert judge.see(0.75, 200, shadow=shadow).limits() == DraftLimits()


def test_each_change_is_reported_once() -> None:
    judge = Judge().see(0.9, 4)
    judge.limits()
    [gained] = judge.changes
    assert (gained.eligible, gained.condition, gained.value) == (True, "acceptance_rate", 0.9)
    judge.limits()
    assert judge.changes == [gained]
    judge.see(0.0, 40)
    judge.limits()
    lost = judge.changes[-1]
    assert (lost.eligible, lost.min, lost.until) == (False, 0.7, 0.6)


def test_figures_belong_to_weights_and_proposers() -> None:
    judge = Judge().see(0.9, 8, proposer="draft_head").see(0.2, 8, proposer="suffix")
    head = ("draft_head",)
    assert judge.limits(proposers=head).verifies
    assert judge.limits(proposers=("suffix",)).reasons == ("low_acceptance",)
    judge.versions = {"draft_head": "2"}
    assert judge.limits(proposers=head).reasons == ("unmeasured",), "what the old head showed says nothing of this one"
    assert judge.see(0.65, 8, proposer="draft_head").limits(proposers=head).reasons == ("low_acceptance",)


def test_drafts_have_to_save_money_where_device_time_is_billed() -> None:
    terms = EligibilityTerms(saving_per_million_tokens=Threshold(min=2.0, until=1.0))
    judge = Judge().see(0.5, 8)
    assert judge.limits(terms) == DraftLimits(), "no device time is billed"
    judge.price_per_s = 0.001  # saved: 2 of 10 seconds for 320 tokens, so 6250 s per million
    assert judge.limits(terms).verifies
    judge.price_per_s = 0.0002
    assert judge.limits(terms).verifies, "1.25 is above `until`"
    judge.price_per_s = 0.0001
    assert judge.limits(terms) == DraftLimits(("no_saving",), verifies=False)
    judge.price_per_s = 0.0002
    assert not judge.limits(terms).verifies


def test_in_shadow_the_saving_is_what_drafts_would_save() -> None:
    terms = EligibilityTerms(saving_per_million_tokens=Threshold(min=0.0))
    judge = Judge()
    judge.price_per_s = 1.0
    stats = ended(0.5, 64, shadow=True)  # 320 tokens accepted
    stats.shadow["suffix"].drafting, stats.shadow["suffix"].verifying = 100.0, 219.0
    judge.eligibility.add(CHAT, stats)
    assert judge.limits(terms).verifies
    stats.shadow["suffix"].verifying = 221.0
    worse = Judge()
    worse.price_per_s = 1.0
    worse.eligibility.add(CHAT, stats)
    assert worse.limits(terms).reasons == ("no_saving",)


def test_a_mixture_of_experts_is_measured_first() -> None:
    judge = Judge(has_experts=True)
    assert judge.limits(None) == DraftLimits(("unmeasured_experts",), verifies=False)
    assert judge.limits(TERMS).reasons == ("unmeasured",)
    assert judge.see(0.55, 8, shadow=True).limits(None) == DraftLimits()
    assert judge.limits(TERMS).reasons == ("low_acceptance",)
    assert judge.see(0.1, 40).limits(None) == DraftLimits(("low_acceptance",), verifies=False)
    assert Judge().limits(None) == DraftLimits()


def test_drafts_are_short_until_enough_were_seen() -> None:
    judge = Judge(start=StartTerms(num_drafts=40))
    assert judge.limits(None) == DraftLimits(("conservative_start",), num_speculative_tokens=4)
    own = StartTerms(num_speculative_tokens=2, num_drafts=20)
    assert judge.limits(None, start=own).num_speculative_tokens == 2
    judge.see(0.1, 2, shadow=True)
    assert judge.limits(None, start=own) == DraftLimits()
    assert judge.limits(None).num_speculative_tokens == 4
    assert judge.see(0.1).limits(None) == DraftLimits()
    assert judge.limits(TERMS) == DraftLimits(("unmeasured",), verifies=False), "what is not verified needs no ceiling"


@pytest.mark.parametrize(("rate", "most"), [(0.3, 0), (0.55, 0), (0.65, 5), (0.75, 1), (0.9, 1)])
def test_a_steady_class_does_not_flap(rate: float, most: int) -> None:
    """Requests differ: each has a rate of its own, uniform within 0.2 of the class's, and 5 to 40 drafts."""
    for seed in range(20):
        draw, judge = random.Random(seed), Judge()
        for _ in range(1000):
            own, num_drafts = min(1.0, max(0.0, rate + draw.uniform(-0.2, 0.2))), draw.randint(5, 40)
            judge.see(own, num_drafts=num_drafts)
            judge.limits()
        assert len(judge.changes) <= most


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{acceptance_rate: {min: 0.6, until: 0.7}}", "until of at most min, which is 0.6"),
        ("{acceptance_rate: {min: 70, until: 60}}", "an acceptance_rate of 0 to 1"),
        ("{}", "acceptance_rate, saving_per_million_tokens, or both"),
        ("{acceptance: {min: 1}}", "did you mean 'acceptance_rate'"),
    ],
)
def test_terms_that_mean_nothing_are_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidPolicy, match=said):
        policy(f"default: {{mode: on, eligible_while: {text}}}")


def test_only_given_terms_are_part_of_the_content() -> None:
    plain = policy("default: {mode: on}")
    assert "eligible_while" not in str(plain.content())
    held = policy(
        "default: {mode: on, eligible_while: {acceptance_rate: {min: 0.7, until: 0.6}}, start: {num_drafts: 9}}"
    )
    assert held.digest != plain.digest
    assert "'until': 0.6" in str(held.content())


def test_hysteresis_goes_on_after_a_restart_and_other_weights_do_not() -> None:
    judge = Judge().see(0.9, 4)
    assert judge.limits() == DraftLimits()
    assert judge.see(0.65, 200).limits() == DraftLimits(), "between the two thresholds"
    learned = judge.eligibility
    again, other = Judge(), Judge()
    again.eligibility.restore(learned.learned(), learned.judged)
    assert again.limits() == DraftLimits()
    other.versions = {"suffix": "2"}
    other.eligibility.restore(learned.learned(), learned.judged)
    assert (other.limits(), other.eligibility.figures) == (DraftLimits(("unmeasured",), verifies=False), {})
    other.versions = {}
    assert other.limits() == DraftLimits(("low_acceptance",), verifies=False), (
        "the figures are there again with the weights"
    )


def test_own_figures_are_not_replaced_by_fewer() -> None:
    judge, earlier = Judge().see(0.9, 4), Judge().see(0.1, 2)
    judge.eligibility.restore(earlier.eligibility.learned(), ())
    assert judge.limits() == DraftLimits()


RULE = (
    "rules: [{{name: chat, match: {{}}, mode: on, eligible_while: {{acceptance_rate: {{min: {0}, until: {0}}}}}{1}}}]"
)
TRAFFIC_CLASS = "chat-completions/standard/free/short"
NEEDED = 22
"""Requests of the fake engine, which makes three drafts in each and has half of their tokens accepted."""


class EligibilityApp(Site):
    def __init__(
        self, folder: Path, policy: str | None = None, *, config: ServerConfig = NO_START, **parts: Any
    ) -> None:
        super().__init__(parts.pop("engine", None), config, folder=folder, policy=policy, **parts)
        self.features = [one for one in self.app.state.features if one.name in ("policy", "health", "learned")]

    async def ask(self, **speculation: object) -> httpx2.Response:
        asked = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "speculation": speculation}
        return await self.post("/v1/chat/completions", **asked)

    async def shown(self) -> dict[str, Any]:
        return dict((await self.get("/admin/health"))["eligibility"])

    async def modes(self, number: int) -> Sequence[str]:
        for _ in range(number):
            await self.ask()
        return [request.speculation.mode for request in self.engine.requests[-number:]]


async def test_drafts_are_compared_until_they_have_shown_enough(tmp_path: Path) -> None:
    app = EligibilityApp(tmp_path, RULE.format(0.5, ""))
    first = await app.ask(metrics=True)
    assert ";limit=unmeasured" in first.headers["x-spec-effective"]
    shown = first.json()["metrics"]
    assert shown["effective"]["limits"] == ["unmeasured"]
    MetricsReply.model_validate(shown)
    texts = {first.json()["choices"][0]["message"]["content"]}
    assert await app.modes(NEEDED) == ["shadow"] * (NEEDED - 1) + ["auto"]
    later = await app.ask()
    assert "limit=" not in later.headers["x-spec-effective"]
    assert texts == {later.json()["choices"][0]["message"]["content"]}
    document = (await app.http.get("/admin/health")).json()["eligibility"]
    [held] = document["conditions"]
    assert (held["traffic_class"], held["eligible"], held["value"]) == (f"{TRAFFIC_CLASS}/chat", True, 0.5)
    [figures] = document["figures"]
    assert (figures["proposer"], figures["num_drafts"]) == ("suffix", 3 * (NEEDED + 2))


async def test_an_edit_of_the_thresholds_takes_the_old_conditions_away_and_no_others(tmp_path: Path) -> None:
    app = EligibilityApp(tmp_path, RULE.format(0.5, ""))
    await app.modes(NEEDED)
    before = await app.shown()
    (tmp_path / "policy.yaml").write_text(RULE.format(0.5, ", num_speculative_tokens: 3"))
    await app.tick("policy", "health", "learned")
    assert await app.shown() == before, "an edit elsewhere"
    (tmp_path / "policy.yaml").write_text(RULE.format(0.6, ""))
    await app.tick("policy", "health", "learned")
    assert (await app.shown())["conditions"] == []
    assert await app.modes(1) == ["shadow"]
    shown = await app.shown()
    assert [(one["min"], one["eligible"]) for one in shown["conditions"]] == [(0.6, False)]
    assert shown["figures"][0]["num_drafts"] == 3 * (NEEDED + 1), "what was measured stays"


async def test_a_restart_goes_on_with_what_was_learned(tmp_path: Path, store: Store) -> None:
    app = EligibilityApp(tmp_path, RULE.format(0.5, ""), store=store)
    await app.tick("policy", "health", "learned")
    assert await app.modes(NEEDED + 1) == ["shadow"] * NEEDED + ["auto"]
    before = await app.shown()
    for feature in app.features:
        await feature.close()
    again = EligibilityApp(tmp_path, RULE.format(0.5, ""), store=store)
    await again.tick("policy", "health", "learned")
    assert await again.shown() == before
    assert await again.modes(1) == ["auto"]


async def test_low_acceptance_stays_in_shadow_or_plain_as_the_share_says(tmp_path: Path) -> None:
    app = EligibilityApp(tmp_path, RULE.format(0.6, ""))
    assert await app.modes(2 * NEEDED) == ["shadow"] * 2 * NEEDED
    assert ";limit=low_acceptance" in (await app.ask()).headers["x-spec-effective"]
    app = EligibilityApp(tmp_path, RULE.format(0.6, ", shadow_percentage: 0"))
    assert await app.modes(2) == ["off", "off"]
    assert app.engine.requests[-1].speculation.off_reason == "not_eligible"
    await app.ask(mode="always")
    assert app.engine.requests[-1].speculation.mode == "always", "an operator may"
    assert "limit=" not in (await app.ask(mode="off")).headers["x-spec-effective"]


async def test_a_fresh_server_drafts_little_at_first_with_and_without_a_policy(tmp_path: Path) -> None:
    for text in (None, "default: {mode: on}"):
        app = EligibilityApp(tmp_path, text, config=ServerConfig())
        assert ";limit=conservative_start" in (await app.ask()).headers["x-spec-effective"]
        await app.ask(max_depth=2)
        await app.ask(mode="always", max_depth=9)
        await app.ask(mode="shadow")
        await app.modes(NEEDED)
        ceilings = [request.speculation.num_speculative_tokens for request in app.engine.requests]
        assert ceilings[:4] == [4, 2, 9, None]
        assert ceilings[4:] == [4] * (NEEDED - 3) + [None] * 3
    app = EligibilityApp(tmp_path, "default: {mode: on, start: {num_speculative_tokens: 1, num_drafts: 3}}")
    await app.modes(2)
    assert [request.speculation.num_speculative_tokens for request in app.engine.requests] == [1, None]


@pytest.mark.parametrize("policy", [None, "default: {mode: on}"])
async def test_a_mixture_of_experts_is_measured_in_shadow_first(tmp_path: Path, policy: str | None) -> None:
    engine = FakeEngine(info=replace(INFO, num_experts=8))
    app = EligibilityApp(tmp_path, policy, engine=engine)
    assert ";limit=unmeasured_experts" in (await app.ask()).headers["x-spec-effective"]
    assert await app.modes(NEEDED) == ["shadow"] * (NEEDED - 1) + ["auto"]


async def test_a_saving_is_asked_for_where_device_time_is_billed(tmp_path: Path) -> None:
    rule = "default: {mode: on, eligible_while: {saving_per_million_tokens: {min: 0.1}}}"
    for term, modes in (("reserved", ["auto"] * 30), ("on_demand", ["shadow"] * 30)):  # the fake engine saves nothing
        book = f"currency: EUR\nprices: [{{name: a, per_device_hour: 1, term: {term}}}]"
        (tmp_path / "prices.yaml").write_text(book)
        app = EligibilityApp(tmp_path, rule, prices=PriceFile(tmp_path / "prices.yaml"))
        assert await app.modes(30) == modes
    assert ";limit=no_saving" in (await app.ask()).headers["x-spec-effective"]


async def test_requests_that_are_not_eligible_are_no_evidence_in_any_arm(tmp_path: Path) -> None:
    rollout = ", rollout: {gate: automatic, stages: [50]}, guardrails: [{name: e, metric: error_rate, limit: 0.5}]"
    app = EligibilityApp(tmp_path, RULE.format(0.9, rollout))
    [live] = (await app.http.get("/admin/rollouts")).json()["rollouts"]
    await app.http.post(f"/admin/rollouts/{live['id']}/start", json={})
    modes = set(await app.modes(60))
    assert modes == {"shadow", "off"}
    [live] = (await app.http.get("/admin/rollouts")).json()["rollouts"]
    assert (live["num_canary"], live["num_control"]) == (0, 0)
