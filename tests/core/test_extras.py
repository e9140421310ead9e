import pytest

from prolepsis.core.errors import ConfigError
from prolepsis.core.extras import Extra


@pytest.mark.parametrize("module", ["json.is_not_here", "is_not_here.json"])
def test_what_is_missing_is_named_with_its_cure(module: str) -> None:
    with pytest.raises(ConfigError, match=r"traces needs Some, .*: pip install 'prolepsis\[some\]'"):
        Extra("some", "Some", module).require("traces", param="traces")


def test_what_is_there_is_no_fault() -> None:
    Extra("some", "Some", "json.decoder").require("traces", param="traces")
