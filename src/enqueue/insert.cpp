// The insert: one row into the open leaf and its indexes, without SPI, planner and executor (5 µs against 13). Server code.
#include "enqueue/message.hpp"
#include "pg/error.hpp"
#include "pg/lookup.hpp"
#include "settings.hpp"

namespace outbox::enqueue {

namespace {

// A random byte costs a call into the crypto library; taken in stock they cost next to nothing.
void random_bytes(uint8* to, int count) {
  static uint8 stock[512];
  static int used = sizeof stock;
  if (used + count > static_cast<int>(sizeof stock)) {
    if (!pg_strong_random(stock, sizeof stock))
      ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR), errmsg("could not generate random values")));
    used = 0;
  }
  memcpy(to, stock + used, count);
  used += count;
}

// UUIDv7 (RFC 9562): 48 bits of milliseconds, 42 random bits, and the low 32 bits of the id in place of the rest of
// rand_b, so that outbox.get_message() finds the row without an index on the UUID.
pg_uuid_t* new_message_id(TimestampTz enqueued_at, int64 id) {
  auto* uuid = static_cast<pg_uuid_t*>(palloc(sizeof(pg_uuid_t)));
  constexpr int64 epoch_ms = (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * INT64CONST(86'400'000);
  const uint64 ms = pg_hton64(static_cast<uint64>(enqueued_at / 1000 + epoch_ms) << 16);
  memcpy(uuid->data, &ms, 6);
  random_bytes(uuid->data + 6, 6);
  uuid->data[6] = (uuid->data[6] & 0x0f) | 0x70;
  uuid->data[8] = (uuid->data[8] & 0x3f) | 0x80;
  const uint32 low = pg_hton32(static_cast<uint32>(id));
  memcpy(uuid->data + 12, &low, 4);
  return uuid;
}

// Indexes with expressions or a predicate can only be an operator's own; ours are on plain columns.
void insert_index_entry(Relation leaf, Relation index, HeapTuple tuple, TupleTableSlot* slot, EState** estate) {
  IndexInfo* info = BuildIndexInfo(index);
  Datum values[INDEX_MAX_KEYS];
  bool nulls[INDEX_MAX_KEYS];
  if (!info->ii_ReadyForInserts) return;
  if (info->ii_Expressions || info->ii_Predicate) {
    if (!*estate) *estate = CreateExecutorState();
    GetPerTupleExprContext(*estate)->ecxt_scantuple = slot;
    if (info->ii_Predicate) {
      ExprState* predicate = ExecPrepareQual(info->ii_Predicate, *estate);
      if (!ExecQual(predicate, GetPerTupleExprContext(*estate))) return;
    }
  }
  FormIndexDatum(info, slot, *estate, values, nulls);
  index_insert(index, values, nulls, &tuple->t_self, leaf,
               index->rd_index->indisunique ? UNIQUE_CHECK_YES : UNIQUE_CHECK_NO, false, info);
#if PG_VERSION_NUM >= 170000
  index_insert_cleanup(index, info);
#endif
}

void insert_index_entries(Relation leaf, HeapTuple tuple) {
  TupleTableSlot* slot = MakeSingleTupleTableSlot(RelationGetDescr(leaf), &TTSOpsHeapTuple);
  ExecStoreHeapTuple(tuple, slot, false);
  EState* estate = nullptr;
  List* indexes = RelationGetIndexList(leaf);
  ListCell* cell;
  foreach (cell, indexes) {
    Relation index = index_open(lfirst_oid(cell), RowExclusiveLock);
    insert_index_entry(leaf, index, tuple, slot, &estate);
    index_close(index, NoLock);
  }
  list_free(indexes);
  if (estate) FreeExecutorState(estate);
  ExecDropSingleTupleTableSlot(slot);
}

uint32 hash_field(const Field& field, uint32 so_far) {
  if (field.null) return so_far;
  bytea* value = DatumGetByteaPP(field.value);
  return hash_combine(so_far, hash_bytes(reinterpret_cast<const unsigned char*>(VARDATA_ANY(value)),
                                         static_cast<int>(VARSIZE_ANY_EXHDR(value))));
}

}  // namespace

void require_shape(Relation leaf) {
  constexpr int never_null = Column::topic;
  pg::require_columns(
      leaf, {INT8OID, XID8OID, TIMESTAMPTZOID, UUIDOID, INT4OID, INT4OID, TEXTOID, BYTEAOID, BYTEAOID, JSONBOID},
      never_null);
}

void require_room_for_nulls(Relation leaf) {
  TupleDesc desc = RelationGetDescr(leaf);
  for (int i = Column::topic; i < desc->natts; i++) {
    const FormData_pg_attribute* column = TupleDescAttr(desc, i);
    if (!column->attnotnull || column->attisdropped) continue;
    ereport(ERROR, (errcode(ERRCODE_NOT_NULL_VIOLATION),
                    errmsg("column \"%s\" of outbox._message must not be null, and enqueue may write a null there",
                           NameStr(column->attname)),
                    errdetail("The extension did not make the column so."),
                    errhint("ALTER TABLE outbox._message ALTER %s DROP NOT NULL",
                            quote_identifier(NameStr(column->attname)))));
  }
}

int32 lane_of(const Message& message, int64 id, int32 lanes) {
  if (lanes == 1) return 0;
  if (message.key.null) return static_cast<int32>(id % lanes);
  text* topic = DatumGetTextPP(message.topic);
  const uint32 hash = hash_bytes(reinterpret_cast<const unsigned char*>(VARDATA_ANY(topic)),
                                 static_cast<int>(VARSIZE_ANY_EXHDR(topic)));
  return static_cast<int32>(hash_field(message.key, hash) % static_cast<uint32>(lanes));
}

pg_uuid_t* insert(const Message& message, const Kept* kept, int64* new_id, int32* new_lane) {
  if (settings::backlog_limit > 0) check_backlog(kept ? kept->refusal : Refusal::possible);
  OpenSegment chosen;
  Relation leaf = open_leaf(&chosen);
  const TimestampTz now = GetCurrentTimestamp();
  const TimestampTz enqueued = kept ? kept->enqueued_at : now;
  const int64 number = nextval_internal(chosen.sequence, false);
  const int32 lane_number = chosen.adopted ? chosen.lanes[lane_of(message, number, chosen.lane_count)] : -1;
  pg_uuid_t* uuid = new_message_id(enqueued, number);
  if (kept) *uuid = *kept->message_id;

  // A column added by a newer version of the SQL script is left NULL.
  const int natts = RelationGetNumberOfAttributes(leaf);
  auto* values = static_cast<Datum*>(palloc0(sizeof(Datum) * natts));
  auto* nulls = static_cast<bool*>(palloc(sizeof(bool) * natts));
  memset(nulls, true, sizeof(bool) * natts);
  auto set = [&](Column column, Datum value, bool null = false) {
    values[column - 1] = value;
    nulls[column - 1] = null;
  };
  set(Column::id, Int64GetDatum(number));
  set(Column::xid, FullTransactionIdGetDatum(GetTopFullTransactionId()));
  set(Column::enqueued_at, TimestampTzGetDatum(enqueued));
  set(Column::message_id, UUIDPGetDatum(uuid));
  set(Column::segment, Int32GetDatum(chosen.segment));
  set(Column::lane, Int32GetDatum(lane_number));
  set(Column::topic, message.topic);
  set(Column::key, message.key.value, message.key.null);
  set(Column::payload, message.payload.value, message.payload.null);
  set(Column::headers, message.headers.value, message.headers.null);

  HeapTuple tuple = heap_form_tuple(RelationGetDescr(leaf), values, nulls);
  tuple->t_tableOid = RelationGetRelid(leaf);
  heap_insert(leaf, tuple, GetCurrentCommandId(true), 0, nullptr);
  insert_index_entries(leaf, tuple);
  heap_freetuple(tuple);
  pfree(values);
  pfree(nulls);
  table_close(leaf, NoLock);

  count_at_commit(lane_number, enqueued);
  if (new_id) *new_id = number;
  if (new_lane) *new_lane = lane_number;
  return uuid;
}

namespace {

Datum lane_of_sql(PG_FUNCTION_ARGS) {
  if (PG_ARGISNULL(0) || PG_ARGISNULL(2) || PG_ARGISNULL(3)) PG_RETURN_NULL();
  Message message;
  message.topic = PG_GETARG_DATUM(0);
  message.key = {PG_ARGISNULL(1) ? 0 : PG_GETARG_DATUM(1), PG_ARGISNULL(1)};
  PG_RETURN_INT32(lane_of(message, PG_GETARG_INT64(2), PG_GETARG_INT32(3)));
}

}  // namespace
}  // namespace outbox::enqueue

OUTBOX_SERVER_FUNCTION(outbox_lane_of, outbox::enqueue::lane_of_sql);
