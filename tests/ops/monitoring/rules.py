"""The rules of groups, one after the other."""

from collections.abc import Iterator, Sequence
from typing import cast

from prolepsis.ops.monitoring.burn_rates import Group, Rule


def all_rules(groups: Sequence[Group]) -> Iterator[Rule]:
    for group in groups:
        yield from cast(list[Rule], group["rules"])
