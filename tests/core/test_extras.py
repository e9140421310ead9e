import pytest

from prolepsis.core.errors import ConfigError
from prolepsis.core.extras import Extra


@pytest.mark.parametrize("module", ["json.is_not_here", "is_not_here.json"])
def test_a_missing_extra_is_named_with_its_install_command(module: str) -> None:
    with pytest.raises(ConfigError, match=r"traces needs Some, .*: pip install 'prolepsis\[some\]'"):
        Extra("some", "Some", module).require("traces", param="traces")


def test_an_installed_extra_raises_nothing() -> None:
    Extra("some", "Some", "json.decoder").require("traces", param="traces")
