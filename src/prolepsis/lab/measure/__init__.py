"""Measuring: contenders answer prompts as they arrive, and reports, gates and tables are made of the outcomes."""
