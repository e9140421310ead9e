"""What operators look at: console, dashboards and alerts, incidents, traces."""
