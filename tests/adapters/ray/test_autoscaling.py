"""The number of replicas follows the samples in flight, and grows while requests wait."""

from types import SimpleNamespace

import pytest

from prolepsis.adapters.ray.autoscaling import IN_FLIGHT, QUEUE_AGE_S, WAITING, Scaling, policy, wanted_replicas
from prolepsis.core.config import ServerConfig, ServingLimits


@pytest.mark.parametrize(
    ("in_flight", "waiting", "age_s", "wanted"),
    [
        ((0, 0), 0, 0.0, 1),  # quiet
        ((10, 0), 0, 0.0, 1),
        ((10, 1), 0, 0.0, 2),
        ((10, 10), 15, 0.9, 4),  # what waits is load, too
        ((10, 10), 0, 1.1, 3),  # the engines are not full and yet requests wait
        ((0, 0), 1, 30.0, 3),
        ((10, 10), 45, 30.0, 7),
    ],
)
def test_two_replicas_are_as_many_as_their_load_wants(
    in_flight: tuple[int, int], waiting: int, age_s: float, wanted: int
) -> None:
    figures = {IN_FLIGHT: in_flight, WAITING: (waiting, waiting), QUEUE_AGE_S: (age_s, 0.0)}
    assert wanted_replicas(2, figures, samples_per_replica=10) == wanted


def test_replicas_that_have_told_nothing_want_one() -> None:
    assert wanted_replicas(3, {}, samples_per_replica=10) == 1


def test_the_policy_reads_what_ray_serve_has_gathered() -> None:
    context = SimpleNamespace(
        aggregated_metrics={IN_FLIGHT: {"a": 25.0, "b": 6.0}, "running_requests": {"a": 900.0}},
        current_num_replicas=2,
        config=SimpleNamespace(target_ongoing_requests=10.0),
    )
    assert policy(context) == (4, {})
    context.aggregated_metrics = None
    assert policy(context) == (1, {})


def test_settings_bound_the_number() -> None:
    assert Scaling.of(ServerConfig(replicas=3)) == Scaling(least=3, most=3)
    assert Scaling.of(ServerConfig(replicas=3)).is_fixed
    scaling = Scaling.of(ServerConfig(max_replicas=4, limits=ServingLimits(samples_per_replica=8)))
    assert scaling == Scaling(least=1, most=4, samples_per_replica=8)
    assert not scaling.is_fixed
