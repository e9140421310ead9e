"""What outlives the process, in SQL: request records, plans, rollouts and the audit log. No torch."""
