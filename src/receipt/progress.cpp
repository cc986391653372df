#include "receipt/progress.hpp"

#include "claim/server_snapshot.hpp"
#include "pg/error.hpp"
#include "pg/lookup.hpp"
#include "retry/dead_letter.hpp"

namespace outbox::receipt {

namespace {

struct Newest {
  bool found = false;
  std::int64_t seq = 0;
  Datum completed = 0;
  Datum window_end = 0;
  bool in_window = false;
  std::int64_t sent_id = 0;
};

// Server code: one step of a backward scan of the index (lane, seq).
bool read_newest_in(int32 segment, int32 lane, Snapshot snapshot, Newest* newest) {
  Oid table_oid = pg::leaf_oid("_progress", segment);
  Relation table = OidIsValid(table_oid) ? pg::try_open(table_oid, AccessShareLock) : nullptr;
  if (!table) return false;
  pg::require_columns(table,
                      {INT4OID, INT4OID, INT8OID, INT8OID, INT8OID, INT4OID, INT8OID, TIMESTAMPTZOID, PG_SNAPSHOTOID,
                       PG_SNAPSHOTOID, BYTEAOID},
                      0);
  Oid index_oid = pg::index_on(table, BTREE_AM_OID, {lane_column, seq_column});
  if (!OidIsValid(index_oid))
    elog(ERROR, "table \"%s\" has lost its index on (lane, seq)", RelationGetRelationName(table));
  Relation index = index_open(index_oid, AccessShareLock);
  ScanKeyData key;
  ScanKeyInit(&key, lane_column, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(lane));
  SysScanDesc scan = systable_beginscan_ordered(table, index, snapshot, 1, &key);
  HeapTuple tuple = systable_getnext_ordered(scan, BackwardScanDirection);
  if (HeapTupleIsValid(tuple)) {
    TupleDesc desc = RelationGetDescr(table);
    bool null;
    newest->found = true;
    newest->seq = DatumGetInt64(pg::not_null(tuple, seq_column, desc));
    newest->completed = PointerGetDatum(PG_DETOAST_DATUM_COPY(pg::not_null(tuple, completed_column, desc)));
    Datum window_end = heap_getattr(tuple, window_end_column, desc, &null);
    newest->in_window = !null;
    if (!null) {
      newest->window_end = PointerGetDatum(PG_DETOAST_DATUM_COPY(window_end));
      newest->sent_id = DatumGetInt64(pg::not_null(tuple, sent_id_column, desc));
    }
  }
  systable_endscan_ordered(scan);
  index_close(index, AccessShareLock);
  table_close(table, AccessShareLock);
  return newest->found;
}

Newest read_newest(const segment::Rows& segments, segment::Group group, int32 lane, Snapshot snapshot) {
  Newest newest;
  pg::call([&] {
    for (int i = segments.count - 1; i >= 0; i--)
      if (segments.rows[i].group() == group && read_newest_in(segments.rows[i].segment, lane, snapshot, &newest)) break;
  });
  return newest;
}

// Server code.
bool lock_lane(int32 lane) {
  Oid types[] = {INT4OID};
  Datum values[] = {Int32GetDatum(lane)};
  if (SPI_execute_with_args("SELECT 1 FROM outbox._lane WHERE lane = $1 FOR UPDATE", 1, types, values, nullptr, false,
                            1) != SPI_OK_SELECT)
    elog(ERROR, "could not lock lane %d", lane);
  return SPI_processed == 1;
}

// Server code. `row` is what changes from call to call.
struct Row {
  int32 segment;
  int32 lane;
  std::int64_t seq;
  std::int64_t first_id;
  std::int64_t last_id;
  int32 messages;
  std::int64_t sent_id;
  Datum completed;
  Datum window_end;
  bool in_window;
  const char* receipts;
  int receipts_size;
};

void insert_row(const Row& row) {
  Oid table_oid = pg::leaf_oid("_progress", row.segment);
  char sql[512];
  pg_snprintf(sql, sizeof sql,
              "INSERT INTO outbox._progress_%d (segment, lane, seq, first_id, last_id, messages, sent_id, appended_at, "
              "completed, window_end, receipts) "
              "VALUES ($1, $2, $3, $4, $5, $6, $7, pg_catalog.clock_timestamp(), $8, $9, $10)",
              row.segment);
  if (!OidIsValid(table_oid))
    ereport(ERROR,
            (errcode(ERRCODE_UNDEFINED_TABLE), errmsg("segment %d of the progress log has lost its table", row.segment),
             errhint("SELECT outbox.roll()")));
  Oid types[] = {INT4OID, INT4OID, INT8OID,        INT8OID,        INT8OID,
                 INT4OID, INT8OID, PG_SNAPSHOTOID, PG_SNAPSHOTOID, BYTEAOID};
  const bool empty = row.receipts_size == 0;
  Datum receipts = empty ? 0 : PointerGetDatum(cstring_to_text_with_len(row.receipts, row.receipts_size));
  Datum values[] = {Int32GetDatum(row.segment),
                    Int32GetDatum(row.lane),
                    Int64GetDatum(row.seq),
                    Int64GetDatum(row.first_id),
                    Int64GetDatum(row.last_id),
                    Int32GetDatum(row.messages),
                    Int64GetDatum(row.sent_id),
                    row.completed,
                    row.window_end,
                    receipts};
  const char n = 'n';
  const char v = ' ';
  const char nulls[] = {
      v, v, v, empty ? n : v, empty ? n : v, v, row.in_window ? v : n, v, row.in_window ? v : n, empty ? n : v};
  if (SPI_execute_with_args(sql, 10, types, values, nulls, false, 0) != SPI_OK_INSERT)
    elog(ERROR, "could not append progress");
}

}  // namespace

Cursor read_cursor(const segment::Rows& segments, segment::Group group, int32 lane, Snapshot snapshot) {
  const Newest newest = read_newest(segments, group, lane, snapshot);
  Cursor cursor;
  if (!newest.found) return cursor;
  cursor.seq = newest.seq;
  cursor.completed = claim::from_datum(newest.completed);
  if (newest.in_window) {
    cursor.window_end = claim::from_datum(newest.window_end);
    cursor.sent_id = newest.sent_id;
  }
  return cursor;
}

namespace {

// 0: the group is not there any more, or an adoption has made it one of the past.
int32 newest_segment_of(const segment::Rows& segments, segment::Group group) {
  if (segments.count == 0 || segments.rows[segments.count - 1].generation != group.generation) return 0;
  for (int i = segments.count - 1; i >= 0; i--)
    if (segments.rows[i].group() == group) return segments.rows[i].segment;
  return 0;
}

}  // namespace

bool append(Advance& advance, segment::Group group) {
  bool ours = false;
  segment::Rows segments{nullptr, 0};
  Snapshot snapshot = nullptr;
  const int32 lane = advance.lane;
  pg::call([&] {
    if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
    ours = lock_lane(lane);
    snapshot = RegisterSnapshot(GetLatestSnapshot());
    segments = segment::read_all(snapshot);
  });
  const Newest newest = read_newest(segments, group, lane, snapshot);
  const int32 segment = newest_segment_of(segments, group);
  const bool nothing = advance.messages == 0 && (!advance.refused || advance.refused->empty());
  // The layout is published and its segments are gone; the worker is about to hear of it.
  const bool over = segment == 0 && nothing;
  ours = ours && newest.seq == advance.to.seq && segment != 0;
  if (ours) {
    Row row{};
    row.segment = segment;
    row.lane = lane;
    row.seq = advance.to.seq + 1;
    row.first_id = advance.first_id;
    row.last_id = advance.last_id;
    row.messages = static_cast<int32>(advance.messages);
    row.sent_id = advance.to.sent_id;
    row.completed = claim::to_datum(advance.to.completed);
    row.in_window = advance.to.window_end.has_value();
    row.window_end = row.in_window ? claim::to_datum(*advance.to.window_end) : 0;
    row.receipts = advance.receipts.data();
    row.receipts_size = static_cast<int>(advance.receipts.size());
    pg::call([&row] { insert_row(row); });
    if (advance.refused)
      for (const Refused& refused : *advance.refused)
        retry::bury(refused.segment, lane, refused.xid, refused.id, refused.error_code, refused.reason.c_str());
    advance.to.seq = row.seq;
  }
  pg::call([&] {
    UnregisterSnapshot(snapshot);
    SPI_finish();
  });
  return ours || over;
}

}  // namespace outbox::receipt
