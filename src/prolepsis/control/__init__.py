"""Deciding about speculation: policy, rollouts, verdicts, controls, and the records they leave."""
