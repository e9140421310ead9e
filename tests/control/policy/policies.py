"""Policies for tests, written as people write them."""

from textwrap import dedent

from prolepsis.control.policy.check import parse_policy
from prolepsis.control.policy.model import Policy


def policy(text: str) -> Policy:
    return parse_policy(dedent(text), "test.yaml")[0]
