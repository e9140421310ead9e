"""Alembic's environment: `env.py` and one file a migration."""
