"""What a request record needs to be compared with the control, and whether its answer kept the requested form."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("request_records", sa.Column("canary_share", sa.Double))
    op.add_column("request_records", sa.Column("kept_form", sa.Boolean))
