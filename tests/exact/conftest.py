"""The default model, loaded once for all tests of this package."""

from collections.abc import Iterator

import pytest
import torch

from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import ModelError
from prolepsis.models.load import LoadedModel, load_model

CONFIG = EngineConfig(max_model_len=2048)


@pytest.fixture(scope="package")
def loaded() -> Iterator[LoadedModel]:
    threads = torch.get_num_threads()
    try:
        yield load_model(CONFIG)
    except ModelError as error:
        pytest.skip(f"the default model is not here: {error}")
    finally:
        torch.set_num_threads(threads)
