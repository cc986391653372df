#include "retry/dead_letter.hpp"

#include "enqueue/message.hpp"
#include "pg/error.hpp"
#include "segment/identity.hpp"

namespace outbox::retry {

void bury(int32 segment, int32 lane, uint64 xid, int64 id, int error_code, const char* reason) {
  pg::call([&] {
    char sql[1024];
    pg_snprintf(
        sql, sizeof sql,
        "INSERT INTO outbox._dead_letter AS d (message_id, replayed, id, lane, topic, key, payload, headers, "
        "enqueued_at, "
        "reason, error_code, attempts, first_failed_at, last_failed_at) "
        "SELECT m.message_id, COALESCE(m.headers ->> 'outbox-replayed', ''), m.id, m.lane, m.topic, m.key, m.payload, "
        "m.headers, m.enqueued_at, "
        "$4, $5, 1, pg_catalog.clock_timestamp(), pg_catalog.clock_timestamp() "
        "FROM outbox._message_%d m WHERE m.lane = $1 AND m.xid = $2 AND m.id = $3 "
        "ON CONFLICT (message_id, replayed) DO UPDATE SET id = excluded.id, lane = excluded.lane, reason = "
        "excluded.reason, "
        "error_code = excluded.error_code, attempts = d.attempts + 1, last_failed_at = excluded.last_failed_at, "
        "resent_at = NULL",
        segment);
    Oid types[] = {INT4OID, XID8OID, INT8OID, TEXTOID, INT4OID};
    // Kafka's texts are ASCII, but a topic's name in them is the only part we know: what the database cannot store is cut.
    char* text = pg_any_to_server(pstrdup(reason), static_cast<int>(strlen(reason)), PG_SQL_ASCII);
    Datum values[] = {Int32GetDatum(lane), UInt64GetDatum(xid), Int64GetDatum(id), CStringGetTextDatum(text),
                      Int32GetDatum(error_code)};
    if (SPI_execute_with_args(sql, 5, types, values, nullptr, false, 0) != SPI_OK_INSERT)
      elog(ERROR, "could not store a dead letter");
    if (SPI_processed != 1)
      elog(ERROR, "message " INT64_FORMAT " of segment %d is not in the log, so its dead letter cannot be stored", id,
           segment);
  });
}

namespace {

[[noreturn]] void refuse(Datum message_id) {
  ereport(ERROR, (errcode(ERRCODE_NO_DATA_FOUND),
                  errmsg("there is no dead letter with message_id \"%s\"",
                         DatumGetCString(DirectFunctionCall1(uuid_out, message_id))),
                  errdetail("Only dead letters can be sent again."), errhint("See outbox.dead_letters.")));
  pg_unreachable();
}

// Server code. Takes the row's lock first, so that two calls for one message send it once.
Datum resend(PG_FUNCTION_ARGS) {
  if (PG_ARGISNULL(0))
    ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("message_id must not be null"),
                    errdetail("A dead letter is found by its message_id."), errhint("See outbox.dead_letters.")));
  if (!PG_ARGISNULL(1))
    ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED), errmsg("corrections are not supported yet"),
                    errdetail("This version sends a dead letter again as it is."), errhint("Leave the argument out.")));
  PreventCommandIfReadOnly("outbox.resend()");
  Datum message_id = PG_GETARG_DATUM(0);
  if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
  Oid types[] = {UUIDOID, INT8OID, INT4OID, TEXTOID};
  if (SPI_execute_with_args("SELECT d.topic, d.key, d.payload, d.headers, d.enqueued_at, d.replayed "
                            "FROM outbox._dead_letter d WHERE d.message_id = $1 AND d.resent_at IS NULL "
                            "ORDER BY d.replayed LIMIT 1 FOR UPDATE",
                            1, types, &message_id, nullptr, false, 1) != SPI_OK_SELECT)
    elog(ERROR, "could not read the dead letter");
  if (SPI_processed != 1) refuse(message_id);

  HeapTuple row = SPI_tuptable->vals[0];
  TupleDesc desc = SPI_tuptable->tupdesc;
  bool null;
  enqueue::Message message;
  message.topic = SPI_getbinval(row, desc, 1, &null);
  message.key.value = SPI_getbinval(row, desc, 2, &message.key.null);
  message.payload.value = SPI_getbinval(row, desc, 3, &message.payload.null);
  message.headers.value = SPI_getbinval(row, desc, 4, &message.headers.null);
  // An operator who mends things is not stopped by what is to be mended: the message is on the disk already.
  const enqueue::Kept kept{DatumGetUUIDP(message_id), DatumGetTimestampTz(SPI_getbinval(row, desc, 5, &null)),
                           enqueue::Refusal::never};
  int64 id;
  int32 lane;
  enqueue::insert(message, &kept, &id, &lane);

  Datum values[] = {message_id, Int64GetDatum(id), Int32GetDatum(lane), SPI_getbinval(row, desc, 6, &null)};
  if (SPI_execute_with_args(
          "UPDATE outbox._dead_letter SET id = $2, lane = $3, resent_at = pg_catalog.clock_timestamp() "
          "WHERE message_id = $1 AND replayed = $4",
          4, types, values, nullptr, false, 0) != SPI_OK_UPDATE)
    elog(ERROR, "could not update the dead letter");
  SPI_finish();
  PG_RETURN_VOID();
}

}  // namespace
}  // namespace outbox::retry

OUTBOX_SERVER_FUNCTION(outbox_resend, outbox::retry::resend);
