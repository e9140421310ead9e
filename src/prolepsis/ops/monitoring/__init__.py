"""What a monitoring system needs to watch a server: objectives, rules, alerts, dashboards."""
