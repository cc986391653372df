"""CREATE EXTENSION and CREATE SERVER, as the README tells users to."""

from psycopg import sql as pgsql


def install_outbox(cluster, kafka, dbname="postgres", server="kafka", options=None, user_mapping=None):
    """Create the extension in a database and its Kafka server; options: librdkafka's ({"linger.ms": 5}).

    kafka: a broker of the harness or a bootstrap.servers string. user_mapping: secrets, for the PUBLIC mapping.
    """
    bootstrap = kafka if isinstance(kafka, str) else kafka.bootstrap
    with cluster.connect(dbname, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS outbox")
        settings = {"bootstrap.servers": bootstrap} | (options or {})
        connection.execute(
            pgsql.SQL("CREATE SERVER {} FOREIGN DATA WRAPPER outbox_kafka OPTIONS ({})").format(
                pgsql.Identifier(server), _options(settings)
            )
        )
        if user_mapping:
            connection.execute(
                pgsql.SQL("CREATE USER MAPPING FOR PUBLIC SERVER {} OPTIONS ({})").format(
                    pgsql.Identifier(server), _options(user_mapping)
                )
            )


def _options(settings):
    pairs = (pgsql.SQL("{} {}").format(pgsql.Identifier(k), pgsql.Literal(str(v))) for k, v in settings.items())
    return pgsql.SQL(", ").join(pairs)
