#include "worker/situation.hpp"

#include "pg/lookup.hpp"
#include "settings.hpp"
#include "version.hpp"

namespace outbox::worker {

using shared::WorkerState;

namespace {

bool table_has_row(const char* name) {
  Oid oid = pg::relation_oid(name);
  Relation relation = OidIsValid(oid) ? pg::try_open(oid, AccessShareLock) : nullptr;
  if (!relation) return false;
  SysScanDesc scan = systable_beginscan(relation, InvalidOid, false, GetActiveSnapshot(), 0, nullptr);
  const bool found = HeapTupleIsValid(systable_getnext(scan));
  systable_endscan(scan);
  table_close(relation, AccessShareLock);
  return found;
}

const char* missing_part() {
  static const char* const parts[] = {"_identity",         "_segment",     "_segment_event", "_layout",
                                      "_archive_function", "_lane",        "_message",       "_message_id",
                                      "_progress",         "_dead_letter", "_pause"};
  for (const char* part : parts)
    if (!OidIsValid(pg::relation_oid(part))) return part;
  return nullptr;
}

}  // namespace

Look look_at_catalogs() {
  Look found;
  const char* version = pg::extension_version();
  found.extension = version != nullptr;
  if (!found.extension) return found;
  strlcpy(found.version, version, sizeof found.version);
  found.extension_oid = pg::extension_oid();
  if ((found.missing = missing_part()) != nullptr) return found;
  found.paused = table_has_row("_pause");
  found.verdict = identity::check(&found.generation, found.why, sizeof found.why);
  if (found.verdict == identity::Verdict::promoted) identity::store_promoted(found.generation);
  return found;
}

Situation situation_of(const Look& found) {
  if (!found.extension) return {WorkerState::running, "", true};
  if (found.missing)
    return {WorkerState::incompatible,
            std::string("outbox.") + found.missing +
                " is missing: restore it, or give up what is in the outbox with SET outbox.allow_data_loss = on; "
                "DROP EXTENSION outbox CASCADE; and create it again"};
  if (strcmp(found.version, sql_version) != 0)
    return {WorkerState::incompatible, std::string("the library is version ") + library_version +
                                           " and needs SQL version " + sql_version + ", the database has " +
                                           found.version +
                                           ": ALTER EXTENSION outbox UPDATE, or install the matching library"};
  if (found.verdict == identity::Verdict::foreign)
    return {WorkerState::awaiting_adoption, std::string(found.why) + ": to publish from here, SELECT outbox.adopt()"};
  if (found.paused) return {WorkerState::paused, "outbox.pause() was called: SELECT outbox.resume()"};
  if (!settings::enabled) return {WorkerState::paused, "outbox.enabled is off"};
  return {WorkerState::running, ""};
}

}  // namespace outbox::worker
