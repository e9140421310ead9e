"""Policies for tests, written as people write them."""

from textwrap import dedent

from prolepsis.policy.model import Policy
from prolepsis.policy.reading import parse_policy


def policy(text: str) -> Policy:
    return parse_policy(dedent(text), "test.yaml")[0]
