// DROP EXTENSION and whatever else drops it is refused while messages are unpublished. Server code.
#include "segment/guard_drop.hpp"

#include "pg/error.hpp"
#include "pg/lookup.hpp"
#include "settings.hpp"

namespace outbox::segment {

namespace {

bool names(List* objects, const char* name) {
  ListCell* cell;
  foreach (cell, objects) {
    auto* object = static_cast<Node*>(lfirst(cell));
    if (IsA(object, String) && strcmp(strVal(object), name) == 0) return true;
  }
  return false;
}

// The extension stands in two schemas: its own, and the one that CREATE EXTENSION recorded (usually public), which
// contains nothing of it but takes it along when it is dropped.
bool drops_schema_of_ours(const DropStmt* drop) {
  if (names(drop->objects, "outbox")) return true;
  const Oid recorded = pg::extension_schema();
  const char* name = OidIsValid(recorded) ? get_namespace_name(recorded) : nullptr;
  return name != nullptr && names(drop->objects, name);
}

}  // namespace

bool may_drop_extension() { return superuser() || pg::extension_owner() == GetUserId(); }

bool drops_extension(Node* statement) {
  if (!IsA(statement, DropOwnedStmt) && !IsA(statement, DropStmt)) return false;
  if (IsA(statement, DropOwnedStmt)) {
    const Oid owner = pg::extension_owner();
    ListCell* cell;
    foreach (cell, reinterpret_cast<DropOwnedStmt*>(statement)->roles)
      if (get_rolespec_oid(lfirst_node(RoleSpec, cell), true) == owner) return true;
    return false;
  }
  auto* drop = reinterpret_cast<DropStmt*>(statement);
  // Without CASCADE a schema or a required extension is not dropped while ours is there.
  if (drop->removeType == OBJECT_EXTENSION)
    return names(drop->objects, "outbox") || (drop->behavior == DROP_CASCADE && names(drop->objects, "plpgsql"));
  return drop->removeType == OBJECT_SCHEMA && drop->behavior == DROP_CASCADE && drops_schema_of_ours(drop);
}

namespace {

// With the lock that the DROP takes anyway: what is committed while we wait for it is counted, and it is taken before the
// locks on what an enqueuer touches after its segment.
int64 count_unpublished() {
  int64 count = 0;
  if (!OidIsValid(pg::relation_oid("_message"))) {
    if (settings::allow_data_loss) return 0;
    ereport(
        ERROR,
        (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
         errmsg("cannot drop extension \"outbox\": its message log is not there, so nobody can tell what is published"),
         errhint("Restore outbox._message, or set outbox.allow_data_loss = on.")));
  }
  if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
  if (SPI_execute("LOCK TABLE outbox._message IN ACCESS EXCLUSIVE MODE", false, 0) < 0)
    elog(ERROR, "could not lock the message log");
  if (settings::allow_data_loss) {
    SPI_finish();
    return 0;
  }
  if (SPI_execute("SELECT outbox._unpublished()", false, 1) != SPI_OK_SELECT || SPI_processed != 1)
    elog(ERROR, "could not count the messages");
  bool null;
  count = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &null));
  SPI_finish();
  return count;
}

Datum guard_drop(PG_FUNCTION_ARGS) {
  if (!CALLED_AS_EVENT_TRIGGER(fcinfo))
    ereport(ERROR, (errcode(ERRCODE_E_R_I_E_EVENT_TRIGGER_PROTOCOL_VIOLATED),
                    errmsg("outbox._guard_drop() is an event trigger function")));
  Node* statement = reinterpret_cast<EventTriggerData*>(fcinfo->context)->parsetree;
  if (!OidIsValid(pg::extension_oid()) || !drops_extension(statement)) PG_RETURN_NULL();
  // Somebody without the right to drop it learns that from the DROP itself, and takes no lock here.
  if (!may_drop_extension()) PG_RETURN_NULL();
  const int64 count = count_unpublished();
  if (count > 0)
    ereport(
        ERROR,
        (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
         errmsg_plural("cannot drop extension \"outbox\": %lld message is not published",
                       "cannot drop extension \"outbox\": %lld messages are not published", count, (long long)count),
         errdetail_plural("It is pending or a dead letter and would be lost.",
                          "They are pending or dead letters and would be lost.", count),
         errhint("Wait with outbox.drain() and see outbox.dead_letters, or set outbox.allow_data_loss = on.")));
  PG_RETURN_NULL();
}

}  // namespace
}  // namespace outbox::segment

OUTBOX_SERVER_FUNCTION(outbox_guard_drop, outbox::segment::guard_drop);
