"""Alembic's entry: run the revisions on the connection that `migrations.upgrade` hands over.

There is no `alembic.ini`: an operator says `orbit db upgrade`. Where the database can, a revision is one transaction;
MySQL and MariaDB commit each DDL statement by itself.
"""

from alembic import context
from sqlalchemy import Connection

from orbit.database import metadata


def run(connection: Connection) -> None:
    """Run what `alembic.command` asked for."""
    context.configure(
        connection=connection,
        target_metadata=metadata,
        transaction_per_migration=True,
        transactional_ddl=connection.dialect.name == "sqlite",
        render_as_batch=connection.dialect.name == "sqlite",
    )
    with context.begin_transaction():
        context.run_migrations()


run(context.config.attributes["connection"])
