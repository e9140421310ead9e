"""An engine begins with what was learned of drafts by the same weights, and with nothing else."""

from dataclasses import replace

from structlog.testing import capture_logs

from prolepsis.control.health.priors import AcceptancePriors
from prolepsis.core.config import MERGED
from prolepsis.core.messages import LearnedAcceptance
from prolepsis.core.stats import AcceptanceState
from tests.fake_client import INFO, FakeEngineClient

OLD, NEW = AcceptanceState((0.5, 60.0), {}), AcceptanceState((0.8, 60.0), {})


def test_an_engine_gets_what_belongs_to_its_weights_once_and_a_head_what_it_learned_before() -> None:
    client, measured = FakeEngineClient(lambda _: ()), dict[tuple[str, str], AcceptanceState]()
    client.info = replace(INFO, fingerprint="fp", proposers=("suffix", "draft_head"), draft_head="h@1")
    priors = AcceptancePriors(client, measured)
    priors.follow()
    assert client.learned == [], "the store was not read yet"
    places = (("suffix", "fp"), ("suffix", "other"), ("draft_head", "h@2 fp"), (MERGED, "h@1 fp"))
    priors.stored = dict.fromkeys(places, OLD)
    with capture_logs() as lines:
        for _ in range(2):
            priors.follow()
    assert client.learned == [LearnedAcceptance("suffix", "fp", OLD), LearnedAcceptance(MERGED, "h@1 fp", OLD)]
    assert [(line["proposer"], line["source"]) for line in lines] == [("suffix", "the store"), (MERGED, "the store")]
    client.learned.clear()
    measured["draft_head", "h@2 fp"] = NEW
    client.info = replace(client.info, draft_head="h@2")
    priors.follow()
    assert client.learned == [LearnedAcceptance("draft_head", "h@2 fp", NEW)]
    assert priors.measured == measured
