"""Run by Alembic; the connection and its transaction belong to `control/store/migrate.py`."""

from alembic import context

from prolepsis.control.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
