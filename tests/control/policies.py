"""Policies for tests, written as people write them."""

from textwrap import dedent

from prolepsis.control.policy import Policy
from prolepsis.control.reading import parse_policy


def policy(text: str) -> Policy:
    return parse_policy(dedent(text), "test.yaml")[0]
