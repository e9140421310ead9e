"""All tables, and the beginning of each chain."""

from alembic import op

from prolepsis.control.store.links import begin
from prolepsis.control.store.tables import metadata

revision = "0001"
down_revision = None


def upgrade() -> None:
    metadata.create_all(op.get_bind())
    begin(op.get_bind())
