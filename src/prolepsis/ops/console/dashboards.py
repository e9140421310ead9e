"""The dashboards that are shipped, and what each answers; `ops/monitoring` has their files."""

DASHBOARDS = {
    "executive": "Does it pay? Device time, savings, cost and its forecast, by rule and tenant.",
    "on-call": "Is it healthy? Failures, latencies, queue and engine of each server.",
    "debug": "Why? Acceptance, modes and reasons by traffic class and proposer, correctness, steps and memory.",
}
