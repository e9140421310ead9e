"""Mappings whose values are read from a file at each access."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeVar

Value = TypeVar("Value")


class OnDemand(Mapping[str, Value]):
    """The values of `names`, each read when it is taken; asking whether a name is there reads nothing.

    `Mapping` would read a value to find out whether it is there, so each matrix of a model would be read twice.
    """

    def __init__(self, names: Collection[str], read: Callable[[str], Value]) -> None:
        self._names = dict.fromkeys(names)
        self._read = read

    def __getitem__(self, name: str) -> Value:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
