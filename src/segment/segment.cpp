#include "segment/segment.hpp"

#include "pg/error.hpp"
#include "pg/lookup.hpp"

namespace outbox::segment {

namespace {

enum Column : int { segment_column = 1, generation_column, layout_column };
enum EventColumn : int { of_column = 1, event_column };
enum LayoutColumn : int { number_column = 1, server_column, lanes_column };

Relation open_table(const char* name, std::initializer_list<Oid> columns) {
  const Oid oid = pg::relation_oid(name);
  Relation relation = OidIsValid(oid) ? pg::try_open(oid, AccessShareLock) : nullptr;
  if (relation) pg::require_columns(relation, columns, 0);
  return relation;
}

Row row_of(HeapTuple tuple, TupleDesc desc) {
  return {DatumGetInt32(pg::not_null(tuple, segment_column, desc)),
          DatumGetInt32(pg::not_null(tuple, generation_column, desc)),
          DatumGetInt32(pg::not_null(tuple, layout_column, desc)), State::open, HeapTupleHeaderGetXmin(tuple->t_data)};
}

int by_number(const void* a, const void* b) {
  return static_cast<const Row*>(a)->segment - static_cast<const Row*>(b)->segment;
}

Rows read_rows(Relation relation, Snapshot snapshot) {
  int room = 16;
  Rows result{static_cast<Row*>(palloc(sizeof(Row) * room)), 0};
  SysScanDesc scan = systable_beginscan(relation, InvalidOid, false, snapshot, 0, nullptr);
  HeapTuple tuple;
  while (HeapTupleIsValid(tuple = systable_getnext(scan))) {
    if (result.count == room) result.rows = static_cast<Row*>(repalloc(result.rows, sizeof(Row) * (room *= 2)));
    result.rows[result.count++] = row_of(tuple, RelationGetDescr(relation));
  }
  systable_endscan(scan);
  qsort(result.rows, result.count, sizeof(Row), by_number);
  return result;
}

bool is(text* event, const char* name) {
  const auto size = VARSIZE_ANY_EXHDR(event);
  return size == strlen(name) && memcmp(VARDATA_ANY(event), name, size) == 0;
}

constexpr int32 gone = -1;  // generation of a row that is dropped or detached

void apply_event(Row* row, text* event) {
  if (is(event, "dropped") || is(event, "detached"))
    row->generation = gone;
  else if (is(event, "drained"))
    row->state = State::drained;
  else if (is(event, "rolled") && row->state == State::open)
    row->state = State::rolled;
}

void apply_events(Rows* rows, Relation relation, Snapshot snapshot) {
  TupleDesc desc = RelationGetDescr(relation);
  SysScanDesc scan = systable_beginscan(relation, InvalidOid, false, snapshot, 0, nullptr);
  HeapTuple tuple;
  while (HeapTupleIsValid(tuple = systable_getnext(scan))) {
    const Row wanted{DatumGetInt32(pg::not_null(tuple, of_column, desc)), 0, 0, State::open, InvalidTransactionId};
    auto* row = static_cast<Row*>(bsearch(&wanted, rows->rows, rows->count, sizeof(Row), by_number));
    if (row) apply_event(row, DatumGetTextPP(pg::not_null(tuple, event_column, desc)));
  }
  systable_endscan(scan);
}

void leave_out_gone(Rows* rows) {
  int kept = 0;
  for (int i = 0; i < rows->count; i++)
    if (rows->rows[i].generation != gone) rows->rows[kept++] = rows->rows[i];
  rows->count = kept;
}

}  // namespace

Relation open_segments() { return open_table("_segment", {INT4OID, INT4OID, INT4OID, TIMESTAMPTZOID}); }

Relation open_events() {
  return open_table("_segment_event", {INT4OID, TEXTOID, TIMESTAMPTZOID, PG_SNAPSHOTOID, TEXTOID});
}

Relation open_layouts() { return open_table("_layout", {INT4OID, TEXTOID, INT4ARRAYOID}); }

Rows read_all(Snapshot snapshot) {
  Rows result{nullptr, 0};
  Relation segments = open_segments();
  Relation events = segments ? open_events() : nullptr;
  if (events) {
    result = read_rows(segments, snapshot);
    apply_events(&result, events, snapshot);
    leave_out_gone(&result);
    table_close(events, AccessShareLock);
  }
  if (segments) table_close(segments, AccessShareLock);
  return result;
}

bool read_newest(Snapshot snapshot, Row* newest) {
  Relation relation = open_segments();
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
  for (int i = all.count - 1; i >= 0 && !found; i--) {
    if (all.rows[i].state != State::open) continue;
    *open = all.rows[i];
    found = true;
  }
  if (all.rows) pfree(all.rows);
  return found;
}

bool is_over(int32 segment) {
  Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
  Rows all = read_all(snapshot);
  UnregisterSnapshot(snapshot);
  bool over = true;
  for (int i = 0; i < all.count; i++)
    if (all.rows[i].segment == segment) over = all.rows[i].state == State::drained;
  if (all.rows) pfree(all.rows);
  return over;
}

namespace {

Lanes lanes_from(Datum value) {
  Datum* elements;
  int count;
  deconstruct_array(DatumGetArrayTypeP(value), INT4OID, sizeof(int32), true, TYPALIGN_INT, &elements, nullptr, &count);
  Lanes result{static_cast<int32*>(palloc(sizeof(int32) * count)), count};
  for (int i = 0; i < count; i++) result.lanes[i] = DatumGetInt32(elements[i]);
  pfree(elements);
  return result;
}

}  // namespace

Lanes read_lanes(int32 layout, Snapshot snapshot) {
  Lanes result{nullptr, 0};
  Relation relation = open_layouts();
  if (!relation) return result;
  TupleDesc desc = RelationGetDescr(relation);
  SysScanDesc scan = systable_beginscan(relation, InvalidOid, false, snapshot, 0, nullptr);
  HeapTuple tuple;
  while (HeapTupleIsValid(tuple = systable_getnext(scan))) {
    if (DatumGetInt32(pg::not_null(tuple, number_column, desc)) != layout) continue;
    if (VARSIZE_ANY_EXHDR(DatumGetTextPP(pg::not_null(tuple, server_column, desc))) == 0)
      result = lanes_from(pg::not_null(tuple, lanes_column, desc));
  }
  systable_endscan(scan);
  table_close(relation, AccessShareLock);
  return result;
}

Lanes read_lanes_of_all(int32 layout, Snapshot snapshot) {
  Lanes result{static_cast<int32*>(palloc(0)), 0};
  Relation relation = open_layouts();
  if (!relation) return result;
  TupleDesc desc = RelationGetDescr(relation);
  SysScanDesc scan = systable_beginscan(relation, InvalidOid, false, snapshot, 0, nullptr);
  HeapTuple tuple;
  while (HeapTupleIsValid(tuple = systable_getnext(scan))) {
    if (DatumGetInt32(pg::not_null(tuple, number_column, desc)) != layout) continue;
    const Lanes more = lanes_from(pg::not_null(tuple, lanes_column, desc));
    result.lanes = static_cast<int32*>(repalloc(result.lanes, sizeof(int32) * (result.count + more.count)));
    memcpy(result.lanes + result.count, more.lanes, sizeof(int32) * more.count);
    result.count += more.count;
  }
  systable_endscan(scan);
  table_close(relation, AccessShareLock);
  return result;
}

void open_next() {
  // outbox._open_segment() is SECURITY DEFINER, so it needs the right to be called only: we call it as its owner.
  Oid user;
  int security_context;
  GetUserIdAndSecContext(&user, &security_context);
  SetUserIdAndSecContext(pg::extension_owner(),
                         security_context | SECURITY_LOCAL_USERID_CHANGE | SECURITY_RESTRICTED_OPERATION);
  if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
  if (SPI_execute("SELECT outbox._open_segment()", false, 0) != SPI_OK_SELECT) elog(ERROR, "could not open a segment");
  SPI_finish();
  SetUserIdAndSecContext(user, security_context);
}

}  // namespace outbox::segment
