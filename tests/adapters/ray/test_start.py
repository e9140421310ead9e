"""What cannot be a replica is refused by name."""

import pytest

from prolepsis.adapters.ray.autoscaling import Scaling
from prolepsis.adapters.ray.start import start_replicas
from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.telemetry.metrics import Metrics


def test_an_engine_that_is_not_ours_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"engine is 'vllm'; allowed with replicas: prolepsis") as refused:
        start_replicas(EngineConfig(engine="vllm"), Scaling(least=2, most=2), Metrics())
    assert refused.value.param == "engine"
