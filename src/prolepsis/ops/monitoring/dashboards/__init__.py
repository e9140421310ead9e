"""Three dashboards: does it pay (executive), is it healthy (on call), what broke (debug)."""
