#include "segment/identity.hpp"

#include "pg/error.hpp"
#include "pg/lookup.hpp"
#include "segment/segment.hpp"
#include "shared/shared.hpp"

extern "C" {
#include <fcntl.h>
#include <sys/stat.h>
}

namespace outbox::identity {

namespace {

enum Column : int {
  generation_column = 1,
  system_column,
  database_column,
  extension_column,
  timeline_column,
  place_column
};

void read_place(char* place, size_t size) {
  static char known[64] = "";  // does not change while a server runs
  if (known[0] == '\0') {
    struct statx file {};
    if (statx(AT_FDCWD, "global/pg_control", 0, STATX_INO | STATX_BTIME, &file) != 0)
      ereport(ERROR, (errcode_for_file_access(), errmsg("could not stat file \"%s\": %m", "global/pg_control")));
    const bool birth = (file.stx_mask & STATX_BTIME) != 0;
    pg_snprintf(known, sizeof known, "%llu/%lld.%09u", (unsigned long long)file.stx_ino,
                birth ? (long long)file.stx_btime.tv_sec : 0LL, birth ? file.stx_btime.tv_nsec : 0U);
  }
  strlcpy(place, known, size);
}

bool read_newest(Identity* stored, int32* generation) {
  Oid oid = pg::relation_oid("_identity");
  Relation relation = OidIsValid(oid) ? pg::try_open(oid, AccessShareLock) : nullptr;
  if (!relation) return false;
  pg::require_columns(relation, {INT4OID, INT8OID, OIDOID, OIDOID, INT4OID, TEXTOID}, 0);
  Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
  TupleDesc desc = RelationGetDescr(relation);
  SysScanDesc scan = systable_beginscan(relation, InvalidOid, false, snapshot, 0, nullptr);
  bool found = false;
  HeapTuple tuple;
  while (HeapTupleIsValid(tuple = systable_getnext(scan))) {
    const int32 number = DatumGetInt32(pg::not_null(tuple, generation_column, desc));
    if (found && number < *generation) continue;
    found = true;
    *generation = number;
    stored->system_identifier = DatumGetInt64(pg::not_null(tuple, system_column, desc));
    stored->database = DatumGetObjectId(pg::not_null(tuple, database_column, desc));
    stored->extension = DatumGetObjectId(pg::not_null(tuple, extension_column, desc));
    stored->timeline = DatumGetInt32(pg::not_null(tuple, timeline_column, desc));
    text_to_cstring_buffer(DatumGetTextPP(pg::not_null(tuple, place_column, desc)), stored->place,
                           sizeof stored->place);
  }
  systable_endscan(scan);
  UnregisterSnapshot(snapshot);
  table_close(relation, AccessShareLock);
  return found;
}

const char* difference(const Identity& stored, const Identity& now) {
  if (stored.system_identifier != now.system_identifier)
    return "the messages come from another cluster (a restored dump)";
  if (stored.database != now.database) return "the messages come from another database (a restored dump or a template)";
  if (stored.extension != now.extension) return "the extension was created anew (a restored dump or pg_upgrade)";
  if (strcmp(stored.place, now.place) != 0) return "the data directory is a copy";
  if (stored.timeline != now.timeline) return "the server was recovered to a point in time";
  return nullptr;
}

bool segments_exist() {
  Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
  segment::Rows rows = segment::read_all(snapshot);
  UnregisterSnapshot(snapshot);
  return rows.count > 0;
}

}  // namespace

Identity current() {
  Identity now{};
  now.system_identifier = static_cast<int64>(GetSystemIdentifier());
  now.database = MyDatabaseId;
  now.extension = pg::extension_oid();
  now.timeline = RecoveryInProgress() ? 0 : static_cast<int32>(pg::insertion_timeline());
  read_place(now.place, sizeof now.place);
  return now;
}

Verdict check(int32* generation, char* why, size_t why_size) {
  Identity stored{};
  *generation = 0;
  if (!read_newest(&stored, generation)) {
    if (!segments_exist()) return Verdict::none_yet;
    strlcpy(why, "a restore is under way or was not complete", why_size);
    return Verdict::foreign;
  }
  const Identity now = current();
  const char* found = difference(stored, now);
  if (!found) return Verdict::ours;
  const bool same_database = stored.system_identifier == now.system_identifier && stored.database == now.database &&
                             stored.extension == now.extension;
  if (same_database && shared::started_as_standby()) return Verdict::promoted;
  strlcpy(why, found, why_size);
  return Verdict::foreign;
}

bool is_adopted() {
  int32 generation;
  char why[256];
  return check(&generation, why, sizeof why) != Verdict::foreign;
}

void store_promoted(int32 generation) {
  const Identity now = current();
  if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
  Oid types[] = {INT4OID, INT4OID, TEXTOID};
  Datum values[] = {Int32GetDatum(generation), Int32GetDatum(now.timeline), CStringGetTextDatum(now.place)};
  SPI_execute_with_args(
      "UPDATE outbox._identity SET timeline = $2, place = $3, since = pg_catalog.clock_timestamp() "
      "WHERE generation = $1",
      3, types, values, nullptr, false, 0);
  SPI_finish();
}

namespace {

Datum this_identity(PG_FUNCTION_ARGS) {
  TupleDesc desc;
  if (get_call_result_type(fcinfo, nullptr, &desc) != TYPEFUNC_COMPOSITE) elog(ERROR, "return type must be a row type");
  const Identity now = current();
  Datum values[] = {Int64GetDatum(now.system_identifier), ObjectIdGetDatum(now.database),
                    ObjectIdGetDatum(now.extension), Int32GetDatum(now.timeline), CStringGetTextDatum(now.place)};
  bool nulls[] = {false, false, false, false, false};
  PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

Datum is_adopted_sql(PG_FUNCTION_ARGS) {
  (void)fcinfo;
  PG_RETURN_BOOL(is_adopted());
}

}  // namespace
}  // namespace outbox::identity

OUTBOX_SERVER_FUNCTION(outbox_this_identity, outbox::identity::this_identity);
OUTBOX_SERVER_FUNCTION(outbox_is_adopted, outbox::identity::is_adopted_sql);
