"""Measuring: contenders answer prompts as they arrive, and reports, verdicts and tables are made of the outcomes."""
