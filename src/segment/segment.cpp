#include "segment/segment.hpp"

#include "pg/error.hpp"
#include "pg/lookup.hpp"

namespace outbox::segment {

namespace {

enum Column : int { segment_column = 1, generation_column, state_column, lanes_column };

State state_of(const char* name) {
  if (strcmp(name, "open") == 0) return State::open;
  return strcmp(name, "rolled") == 0 ? State::rolled : State::drained;
}

Row row_of(HeapTuple tuple, TupleDesc desc) {
  char* state = TextDatumGetCString(pg::not_null(tuple, state_column, desc));
  const Row row{DatumGetInt32(pg::not_null(tuple, segment_column, desc)),
                DatumGetInt32(pg::not_null(tuple, generation_column, desc)),
                DatumGetInt32(pg::not_null(tuple, lanes_column, desc)), state_of(state)};
  pfree(state);
  return row;
}

int by_number(const void* a, const void* b) {
  return static_cast<const Row*>(a)->segment - static_cast<const Row*>(b)->segment;
}

}  // namespace

Rows read_all(Snapshot snapshot) {
  Rows result{nullptr, 0};
  Oid oid = pg::relation_oid("_segment");
  Relation relation = OidIsValid(oid) ? pg::try_open(oid, AccessShareLock) : nullptr;
  if (!relation) return result;
  int room = 16;
  result.rows = static_cast<Row*>(palloc(sizeof(Row) * room));
  TupleDesc desc = RelationGetDescr(relation);
  SysScanDesc scan = systable_beginscan(relation, InvalidOid, false, snapshot, 0, nullptr);
  HeapTuple tuple;
  while (HeapTupleIsValid(tuple = systable_getnext(scan))) {
    if (result.count == room) {
      room *= 2;
      result.rows = static_cast<Row*>(repalloc(result.rows, sizeof(Row) * room));
    }
    result.rows[result.count++] = row_of(tuple, desc);
  }
  systable_endscan(scan);
  table_close(relation, AccessShareLock);
  qsort(result.rows, result.count, sizeof(Row), by_number);
  return result;
}

bool read_newest(Snapshot snapshot, Row* newest) {
  Oid oid = pg::relation_oid("_segment");
  Relation relation = OidIsValid(oid) ? pg::try_open(oid, AccessShareLock) : nullptr;
  if (!relation) return false;
  Relation index = index_open(pg::primary_key_index(relation), AccessShareLock);
  SysScanDesc scan = systable_beginscan_ordered(relation, index, snapshot, 0, nullptr);
  HeapTuple tuple = systable_getnext_ordered(scan, BackwardScanDirection);
  const bool found = HeapTupleIsValid(tuple);
  if (found) *newest = row_of(tuple, RelationGetDescr(relation));
  systable_endscan_ordered(scan);
  index_close(index, AccessShareLock);
  table_close(relation, AccessShareLock);
  return found;
}

bool read_open(Row* open) {
  Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
  Rows all = read_all(snapshot);
  UnregisterSnapshot(snapshot);
  bool found = false;
  for (int i = 0; i < all.count && !found; i++) {
    if (all.rows[i].state != State::open) continue;
    *open = all.rows[i];
    found = true;
  }
  if (all.rows) pfree(all.rows);
  return found;
}

void open_next(int32 lanes) {
  // outbox._open_segment() is SECURITY DEFINER, so it needs the right to be called only: we call it as its owner.
  Oid user;
  int security_context;
  GetUserIdAndSecContext(&user, &security_context);
  SetUserIdAndSecContext(pg::extension_owner(),
                         security_context | SECURITY_LOCAL_USERID_CHANGE | SECURITY_RESTRICTED_OPERATION);
  if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
  Oid types[] = {INT4OID};
  Datum values[] = {Int32GetDatum(lanes)};
  const char nulls[] = {lanes == 0 ? 'n' : ' ', '\0'};
  if (SPI_execute_with_args("SELECT outbox._open_segment($1)", 1, types, values, nulls, false, 0) != SPI_OK_SELECT)
    elog(ERROR, "could not open a segment");
  SPI_finish();
  SetUserIdAndSecContext(user, security_context);
}

}  // namespace outbox::segment
