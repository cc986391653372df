// The probe: connects to one database, and if the extension is there, gives it a place in shared memory. Then it ends.
// Server code.
#include "pg/error.hpp"
#include "pg/lookup.hpp"
#include "settings.hpp"
#include "shared/shared.hpp"
#include "worker/process.hpp"

extern "C" PGDLLEXPORT void outbox_probe_main(Datum argument);

void outbox_probe_main(Datum) {
  using namespace outbox;
  const Oid database = worker::given().database;
  pqsignal(SIGTERM, die);
  BackgroundWorkerUnblockSignals();
  worker::fix_transactions();
  BackgroundWorkerInitializeConnectionByOid(database, InvalidOid, 0);
  SetCurrentStatementStartTimestamp();
  StartTransactionCommand();
  if (OidIsValid(pg::extension_oid()) && !shared::claim(database))
    ereport(WARNING, (errmsg("messages of database %u will not be published", database),
                      errdetail("All %d slots of outbox.max_databases are in use.", settings::max_databases),
                      errhint("Raise outbox.max_databases and restart the server.")));
  if (!OidIsValid(pg::extension_oid()) && OidIsValid(pg::schema_oid()))
    ereport(WARNING, (errmsg("database %u has a schema \"outbox\" without the extension", database),
                      errdetail("Nothing in it is published."),
                      errhint("Rename or drop the schema before CREATE EXTENSION outbox. If it is meant for something "
                              "else, there is nothing to do.")));
  CommitTransactionCommand();
  pg_atomic_write_u32(&shared::get()->probed, database);
  proc_exit(0);
}
