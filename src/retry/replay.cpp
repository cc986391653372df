// outbox.replay(): publishes again what is published and still in the log, by inserting copies.
//
// Segment by segment, so that no more than one is locked, in two passes: the first looks at every row of the table and sorts
// the ids and places of those wanted (on disk, if there are many), the second fetches and copies them in order. Neither index
// nor planner is asked: an old segment has no index by which rows could be found, and no statistics that hold.
//
// One snapshot, taken at the call whatever the isolation level, says what is published. So a copy made here is never copied
// again by the same call; by a later one not either, as it carries the header.
#include "claim/snapshot.hpp"
#include "enqueue/message.hpp"
#include "pg/error.hpp"
#include "pg/lookup.hpp"
#include "receipt/state.hpp"

namespace outbox::retry {

namespace {

using enqueue::Column;

constexpr char header_name[] = "outbox-replayed";

enum Argument : int { topic_arg, since_arg, until_arg, target_arg };
enum DeadLetterColumn : int { message_id_column = 1, replayed_column, id_column, resent_at_column = 15 };

struct Wanted {
  text* topic;
  text* target;  // nullptr: the same topic
  TimestampTz since;
  TimestampTz until;
  Datum header;  // jsonb
};

// ISO 8601, UTC.
Datum header_with(TimestampTz when) {
  const pg_time_t seconds = timestamptz_to_time_t(when);
  const pg_tm* time = pg_gmtime(&seconds);
  char* json =
      psprintf("{\"%s\": \"%04d-%02d-%02dT%02d:%02d:%02d.%06dZ\"}", header_name, time->tm_year + 1900, time->tm_mon + 1,
               time->tm_mday, time->tm_hour, time->tm_min, time->tm_sec, static_cast<int>(when % USECS_PER_SEC));
  return DirectFunctionCall1(jsonb_in, CStringGetDatum(json));
}

// Server code, as all up to `replay`.
Wanted read_arguments(FunctionCallInfo fcinfo) {
  if (PG_ARGISNULL(topic_arg))
    ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("topic must not be null"),
                    errdetail("The messages of one topic are published again."), errhint("Pass the name of a topic.")));
  enqueue::check_transaction("outbox.replay()");
  Wanted wanted{};
  wanted.topic = PG_GETARG_TEXT_PP(topic_arg);
  wanted.target = PG_ARGISNULL(target_arg) ? nullptr : PG_GETARG_TEXT_PP(target_arg);
  if (wanted.target) enqueue::check_topic(wanted.target);
  wanted.since = PG_ARGISNULL(since_arg) ? DT_NOBEGIN : PG_GETARG_TIMESTAMPTZ(since_arg);
  wanted.until = PG_ARGISNULL(until_arg) ? DT_NOEND : PG_GETARG_TIMESTAMPTZ(until_arg);
  wanted.header = header_with(GetCurrentTimestamp());
  return wanted;
}

struct Segments {
  int32* numbers;
  int count;
};

// A segment that was closed before `since` has nothing younger. What it was opened after says nothing: copies, resent and
// adopted messages have their old time.
Segments list_segments(TimestampTz since) {
  MemoryContext outside = CurrentMemoryContext;
  if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
  Oid type = TIMESTAMPTZOID;
  Datum value = TimestampTzGetDatum(since);
  if (SPI_execute_with_args("SELECT s.segment FROM outbox._log s "
                            "WHERE s.rolled_at IS NULL OR s.rolled_at + interval '1 minute' >= $1 ORDER BY s.segment",
                            1, &type, &value, nullptr, true, 0) != SPI_OK_SELECT)
    elog(ERROR, "could not read the segments");
  Segments result{static_cast<int32*>(MemoryContextAlloc(outside, sizeof(int32) * (SPI_processed + 1))),
                  static_cast<int>(SPI_processed)};
  bool null;
  for (int i = 0; i < result.count; i++)
    result.numbers[i] = DatumGetInt32(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &null));
  SPI_finish();
  return result;
}

bool same_text(Datum value, const text* wanted) {
  const text* found = DatumGetTextPP(value);
  const auto size = VARSIZE_ANY_EXHDR(wanted);
  return VARSIZE_ANY_EXHDR(found) == size && memcmp(VARDATA_ANY(found), VARDATA_ANY(wanted), size) == 0;
}

bool was_replayed(Datum headers) {
  JsonbValue value;
  return getKeyJsonValueFromContainer(&DatumGetJsonbP(headers)->root, header_name, sizeof header_name - 1, &value) !=
         nullptr;
}

// What Kafka refused is not published, though the lane is past it. When it is resent, its dead letter tells the new id.
struct DeadLetters {
  Relation table;
  Oid index;
  Snapshot snapshot;

  static DeadLetters open(Snapshot snapshot) {
    const Oid oid = pg::relation_oid("_dead_letter");
    Relation table = OidIsValid(oid) ? pg::try_open(oid, AccessShareLock) : nullptr;
    if (!table)
      ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE), errmsg("table \"outbox._dead_letter\" does not exist"),
                      errdetail("The extension \"outbox\" is not complete."), errhint("See outbox.workers.")));
    if (RelationGetNumberOfBlocks(table) > 0) return {table, pg::primary_key_index(table), snapshot};
    table_close(table, AccessShareLock);
    return {nullptr, InvalidOid, snapshot};
  }
  void close() const {
    if (table) table_close(table, AccessShareLock);
  }

  [[nodiscard]] bool hold_back(Datum message_id, int64 id) const {
    if (!table) return false;
    ScanKeyData keys[2];
    ScanKeyInit(&keys[0], message_id_column, BTEqualStrategyNumber, F_UUID_EQ, message_id);
    ScanKeyInit(&keys[1], replayed_column, BTEqualStrategyNumber, F_TEXTEQ, CStringGetTextDatum(""));
    SysScanDesc scan = systable_beginscan(table, index, OidIsValid(index), snapshot, 2, keys);
    bool held = false;
    if (HeapTuple tuple = systable_getnext(scan)) {
      TupleDesc desc = RelationGetDescr(table);
      bool not_resent;
      (void)heap_getattr(tuple, resent_at_column, desc, &not_resent);
      held = not_resent || DatumGetInt64(pg::not_null(tuple, id_column, desc)) != id;
    }
    systable_endscan(scan);
    return held;
  }
};

// One segment. Two columns are sorted: id, place.
struct Replay {
  const Wanted& wanted;
  const receipt::Progress& progress;
  const DeadLetters& dead_letters;
  Snapshot snapshot;
  int32 segment;
  Relation leaf;
  MemoryContext row;

  const receipt::Cursor* cursor = nullptr;  // of `lane`
  int32 lane = -1;

  bool is_published(const Datum* values) {
    const int32 found = DatumGetInt32(values[Column::lane - 1]);
    if (found < 0) return false;
    if (found != lane) {
      lane = found;
      cursor = progress.cursor(segment, lane);
    }
    return cursor && cursor->covers(DatumGetUInt64(values[Column::xid - 1]), DatumGetInt64(values[Column::id - 1]));
  }

  bool is_wanted(TupleTableSlot* slot) {
    slot_getsomeattrs(slot, Column::columns);
    const Datum* values = slot->tts_values;
    const TimestampTz enqueued = DatumGetTimestampTz(values[Column::enqueued_at - 1]);
    return enqueued >= wanted.since && enqueued < wanted.until && is_published(values) &&
           same_text(values[Column::topic - 1], wanted.topic) &&
           (slot->tts_isnull[Column::headers - 1] || !was_replayed(values[Column::headers - 1])) &&
           !dead_letters.hold_back(values[Column::message_id - 1], DatumGetInt64(values[Column::id - 1]));
  }

  void collect(Tuplesortstate* sort, TupleTableSlot* place) {
    TupleTableSlot* slot = table_slot_create(leaf, nullptr);
    TableScanDesc scan = table_beginscan_strat(leaf, snapshot, 0, nullptr, true, false);
    while (table_scan_getnextslot(scan, ForwardScanDirection, slot)) {
      CHECK_FOR_INTERRUPTS();
      MemoryContext before = MemoryContextSwitchTo(row);
      if (is_wanted(slot)) {
        ExecClearTuple(place);
        place->tts_values[0] = slot->tts_values[Column::id - 1];
        place->tts_values[1] = PointerGetDatum(&slot->tts_tid);
        place->tts_isnull[0] = place->tts_isnull[1] = false;
        ExecStoreVirtualTuple(place);
        tuplesort_puttupleslot(sort, place);
      }
      MemoryContextSwitchTo(before);
      MemoryContextReset(row);
    }
    table_endscan(scan);
    ExecDropSingleTupleTableSlot(slot);
  }

  void copy(TupleTableSlot* slot) {
    slot_getsomeattrs(slot, Column::columns);
    auto field = [slot](Column column) {
      return enqueue::Field{slot->tts_values[column - 1], slot->tts_isnull[column - 1]};
    };
    enqueue::Message message;
    message.topic = wanted.target ? PointerGetDatum(wanted.target) : slot->tts_values[Column::topic - 1];
    message.key = field(Column::key);
    message.payload = field(Column::payload);
    message.headers = field(Column::headers);
    message.headers = {
        message.headers.null ? wanted.header : DirectFunctionCall2(jsonb_concat, message.headers.value, wanted.header),
        false};
    const enqueue::Kept kept{DatumGetUUIDP(slot->tts_values[Column::message_id - 1]),
                             DatumGetTimestampTz(slot->tts_values[Column::enqueued_at - 1])};
    enqueue::insert(message, &kept);
  }

  int64 send(Tuplesortstate* sort, TupleTableSlot* place) {
    TupleTableSlot* slot = table_slot_create(leaf, nullptr);
    int64 count = 0;
    while (tuplesort_gettupleslot(sort, true, false, place, nullptr)) {
      CHECK_FOR_INTERRUPTS();
      slot_getallattrs(place);
      if (!table_tuple_fetch_row_version(leaf, reinterpret_cast<ItemPointer>(DatumGetPointer(place->tts_values[1])),
                                         snapshot, slot))
        elog(ERROR, "a message of segment %d is not where it was", segment);
      MemoryContext before = MemoryContextSwitchTo(row);
      copy(slot);
      MemoryContextSwitchTo(before);
      MemoryContextReset(row);
      count++;
    }
    ExecDropSingleTupleTableSlot(slot);
    return count;
  }

  int64 run() {
    TupleDesc desc = CreateTemplateTupleDesc(2);
    TupleDescInitEntry(desc, 1, "id", INT8OID, -1, 0);
    TupleDescInitEntry(desc, 2, "place", TIDOID, -1, 0);
    AttrNumber column = 1;
    Oid less = Int8LessOperator;
    Oid collation = InvalidOid;
    bool nulls_first = false;
    Tuplesortstate* sort =
        tuplesort_begin_heap(desc, 1, &column, &less, &collation, &nulls_first, work_mem, nullptr, false);
    TupleTableSlot* place = MakeSingleTupleTableSlot(desc, &TTSOpsVirtual);
    collect(sort, place);
    tuplesort_performsort(sort);
    ExecDropSingleTupleTableSlot(place);
    place = MakeSingleTupleTableSlot(desc, &TTSOpsMinimalTuple);
    const int64 count = send(sort, place);
    ExecDropSingleTupleTableSlot(place);
    tuplesort_end(sort);
    return count;
  }
};

int64 replay_segment(int32 segment, const Wanted& wanted, const receipt::Progress& progress,
                     const DeadLetters& dead_letters, Snapshot snapshot) {
  const Oid table = pg::leaf_oid("_message", segment);
  Relation leaf = OidIsValid(table) ? pg::try_open(table, AccessShareLock) : nullptr;
  if (!leaf) return 0;  // retention was faster
  enqueue::require_shape(leaf);
  MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "outbox replay", ALLOCSET_DEFAULT_SIZES);
  MemoryContext row = AllocSetContextCreate(context, "outbox replay row", ALLOCSET_DEFAULT_SIZES);
  MemoryContext before = MemoryContextSwitchTo(context);
  Replay replay{wanted, progress, dead_letters, snapshot, segment, leaf, row};
  const int64 count = replay.run();
  MemoryContextSwitchTo(before);
  MemoryContextDelete(context);
  table_close(leaf, AccessShareLock);
  return count;
}

// C++ code.
Datum replay(PG_FUNCTION_ARGS) {
  const Wanted wanted = pg::call([fcinfo] { return read_arguments(fcinfo); });
  Snapshot snapshot = pg::call([] {
    Snapshot latest = RegisterSnapshot(GetLatestSnapshot());
    PushActiveSnapshot(latest);
    return latest;
  });
  const receipt::Progress progress(snapshot);
  const int64 count = pg::call([&] {
    const DeadLetters dead_letters = DeadLetters::open(snapshot);
    const Segments segments = list_segments(wanted.since);
    int64 sum = 0;
    for (int i = 0; i < segments.count; i++)
      sum += replay_segment(segments.numbers[i], wanted, progress, dead_letters, snapshot);
    dead_letters.close();
    PopActiveSnapshot();
    UnregisterSnapshot(snapshot);
    return sum;
  });
  PG_RETURN_INT64(count);
}

}  // namespace
}  // namespace outbox::retry

OUTBOX_FUNCTION(outbox_replay, outbox::retry::replay);
