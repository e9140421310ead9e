"""What all rooms share: requests, events, messages, the plan, errors, settings, metrics."""
