"""vLLM as an engine: it schedules and computes, we draft and sample. Only `v0_32` imports it."""
