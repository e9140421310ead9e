"""What tests of served applications share."""

from tests.server.conftest import client, few_logs, lines, shared

__all__ = ["client", "few_logs", "lines", "shared"]
