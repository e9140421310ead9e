"""Public names of a package, each imported when it is first used."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazily(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package whose names live in the modules `homes`.

    Importing the package itself then stays quick and needs none of them. An unknown name raises `AttributeError`.
    """

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has: {', '.join(sorted(homes))}")
        value: object = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)  # it is looked up once
        return value

    return get, lambda: sorted(homes)
