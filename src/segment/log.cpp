#include "segment/log.hpp"

#include "pg/error.hpp"
#include "pg/lookup.hpp"

namespace outbox::segment {

namespace {

enum Column : int { segment_column = 1, generation_column, layout_column, opened_at_column };
enum EventColumn : int { of_column = 1, event_column, at_column, moment_column, note_column };

constexpr int32 gone = -1;  // generation of an entry that is dropped or detached

int by_number(const void* a, const void* b) {
  return static_cast<const Entry*>(a)->row.segment - static_cast<const Entry*>(b)->row.segment;
}

void read_segments(Log* log, Relation relation, Snapshot snapshot) {
  TupleDesc desc = RelationGetDescr(relation);
  int room = 16;
  log->entries = static_cast<Entry*>(palloc(sizeof(Entry) * room));
  SysScanDesc scan = systable_beginscan(relation, InvalidOid, false, snapshot, 0, nullptr);
  HeapTuple tuple;
  while (HeapTupleIsValid(tuple = systable_getnext(scan))) {
    if (log->count == room) log->entries = static_cast<Entry*>(repalloc(log->entries, sizeof(Entry) * (room *= 2)));
    Entry entry{};
    entry.row = {DatumGetInt32(pg::not_null(tuple, segment_column, desc)),
                 DatumGetInt32(pg::not_null(tuple, generation_column, desc)),
                 DatumGetInt32(pg::not_null(tuple, layout_column, desc)), State::open, InvalidTransactionId};
    entry.opened_at = DatumGetTimestampTz(pg::not_null(tuple, opened_at_column, desc));
    log->entries[log->count++] = entry;
  }
  systable_endscan(scan);
  qsort(log->entries, log->count, sizeof(Entry), by_number);
}

void apply_archived(Entry* entry, const char* event, Datum note, bool no_note, TimestampTz at) {
  if (strcmp(event, "archive_failed") == 0) {
    entry->failures++;
    entry->failed_at = Max(entry->failed_at, at);
  } else if (!no_note && strcmp(TextDatumGetCString(note), "kept") == 0) {
    entry->kept = true;
  } else {
    entry->taken = true;
  }
}

// Whoever wrote the event has ended, and no snapshot is older: a row version that is deleted now can be removed at once.
bool is_old(HeapTuple tuple, TransactionId horizon) {
  return TransactionIdPrecedes(HeapTupleHeaderGetXmin(tuple->t_data), horizon);
}

void apply_event(Log* log, Entry* entry, HeapTuple tuple, TupleDesc desc, TransactionId horizon) {
  const char* event = TextDatumGetCString(pg::not_null(tuple, event_column, desc));
  const TimestampTz at = DatumGetTimestampTz(pg::not_null(tuple, at_column, desc));
  bool no_note;
  Datum note = heap_getattr(tuple, note_column, desc, &no_note);
  if (strcmp(event, "dropped") == 0 || strcmp(event, "detached") == 0) {
    entry->row.generation = gone;
    log->gone_in_all++;
    if (is_old(tuple, horizon)) log->gone[log->gone_count++] = entry->row.segment;
  } else if (strcmp(event, "drained") == 0) {
    entry->row.state = State::drained;
    entry->drained_at = at;
    entry->drained_by = HeapTupleHeaderGetXmin(tuple->t_data);
  } else if (strcmp(event, "rolled") == 0) {
    if (entry->row.state == State::open) entry->row.state = State::rolled;
  } else if (strcmp(event, "quiet") == 0) {
    entry->moment = PointerGetDatum(PG_DETOAST_DATUM_COPY(pg::not_null(tuple, moment_column, desc)));
  } else {
    apply_archived(entry, event, note, no_note, at);
  }
}

void apply_events(Log* log, Relation relation, Snapshot snapshot) {
  TupleDesc desc = RelationGetDescr(relation);
  const TransactionId horizon = GetOldestNonRemovableTransactionId(relation);
  log->gone = static_cast<int32*>(palloc(sizeof(int32) * (log->count + 1)));
  SysScanDesc scan = systable_beginscan(relation, InvalidOid, false, snapshot, 0, nullptr);
  HeapTuple tuple;
  while (HeapTupleIsValid(tuple = systable_getnext(scan))) {
    Entry wanted{};
    wanted.row.segment = DatumGetInt32(pg::not_null(tuple, of_column, desc));
    auto* entry = static_cast<Entry*>(bsearch(&wanted, log->entries, log->count, sizeof(Entry), by_number));
    if (entry && entry->row.generation != gone) apply_event(log, entry, tuple, desc, horizon);
  }
  systable_endscan(scan);
}

void leave_out_gone(Log* log) {
  int kept = 0;
  for (int i = 0; i < log->count; i++) {
    Entry entry = log->entries[i];
    if (entry.row.generation == gone) continue;
    entry.messages = pg::leaf_oid("_message", entry.row.segment);
    entry.progress = pg::leaf_oid("_progress", entry.row.segment);
    log->entries[kept++] = entry;
  }
  log->count = kept;
}

}  // namespace

Log read_log(Snapshot snapshot) {
  Log log{};
  Relation segments = open_segments();
  Relation events = segments ? open_events() : nullptr;
  if (events) {
    read_segments(&log, segments, snapshot);
    apply_events(&log, events, snapshot);
    leave_out_gone(&log);
    table_close(events, AccessShareLock);
  }
  if (segments) table_close(segments, AccessShareLock);
  return log;
}

const Entry* find(const Log& log, int32 segment) {
  for (int i = 0; i < log.count; i++)
    if (log.entries[i].row.segment == segment) return &log.entries[i];
  return nullptr;
}

void add_event(int32 segment, const char* event, Datum moment, const char* note) {
  if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
  Oid types[] = {INT4OID, TEXTOID, PG_SNAPSHOTOID, TEXTOID};
  Datum values[] = {Int32GetDatum(segment), CStringGetTextDatum(event), moment, note ? CStringGetTextDatum(note) : 0};
  const char nulls[] = {' ', ' ', moment == 0 ? 'n' : ' ', note ? ' ' : 'n', '\0'};
  if (SPI_execute_with_args("INSERT INTO outbox._segment_event (segment, event, at, moment, note) "
                            "VALUES ($1, $2, pg_catalog.clock_timestamp(), $3, $4)",
                            4, types, values, nulls, false, 0) != SPI_OK_INSERT)
    elog(ERROR, "could not write that segment %d is %s", segment, event);
  SPI_finish();
}

void forget(const Log& log) {
  if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
  auto* numbers = static_cast<Datum*>(palloc(sizeof(Datum) * log.gone_count));
  for (int i = 0; i < log.gone_count; i++) numbers[i] = Int32GetDatum(log.gone[i]);
  ArrayType* array = construct_array(numbers, log.gone_count, INT4OID, sizeof(int32), true, TYPALIGN_INT);
  Oid type = INT4ARRAYOID;
  Datum value = PointerGetDatum(array);
  for (const char* sql : {"DELETE FROM outbox._segment WHERE segment = ANY ($1)",
                          "DELETE FROM outbox._segment_event WHERE segment = ANY ($1)"})
    if (SPI_execute_with_args(sql, 1, &type, &value, nullptr, false, 0) != SPI_OK_DELETE)
      elog(ERROR, "could not delete the rows of segments that are gone");
  SPI_finish();
}

bool lock_log() {
  const Oid table = pg::relation_oid("_segment");
  return OidIsValid(table) && ConditionalLockRelationOid(table, ShareRowExclusiveLock);
}

}  // namespace outbox::segment
