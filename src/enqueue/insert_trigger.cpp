// INSERT INTO outbox.messages, for ORMs: the row becomes a message, and RETURNING shows its message_id. Server code.
#include <initializer_list>

#include "enqueue/message.hpp"
#include "pg/error.hpp"
#include "pg/text.hpp"

namespace outbox::enqueue {

namespace {

struct NewRow {
  HeapTuple tuple;
  TupleDesc desc;

  int column(const char* name) const {
    const int number = SPI_fnumber(desc, name);
    if (number <= 0) elog(ERROR, "outbox.messages has no column \"%s\"", name);
    return number;
  }
  Field field(const char* name) const {
    Field field;
    field.value = heap_getattr(tuple, column(name), desc, &field.null);
    return field;
  }
};

Field text_or_bytes(const NewRow& row, const char* text_name, const char* bytes_name) {
  Field as_text = row.field(text_name);
  Field as_bytes = row.field(bytes_name);
  if (as_text.null) return as_bytes;
  if (!as_bytes.null)
    ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                    errmsg("columns \"%s\" and \"%s\" are both given", text_name, bytes_name),
                    errdetail("Both are forms of one value."), errhint("Give the text or the bytes.")));
  as_text.value = pg::utf8_bytea(as_text.value, text_name);
  return as_text;
}

void refuse_columns_of_ours(const NewRow& row) {
  for (const char* name : {"message_id", "enqueued_at", "lane", "state", "kafka_partition", "kafka_offset"}) {
    if (row.field(name).null) continue;
    ereport(
        ERROR,
        (errcode(ERRCODE_GENERATED_ALWAYS), errmsg("cannot insert a value into column \"%s\" of outbox.messages", name),
         errdetail("The column is filled by the extension."), errhint("Insert topic, key, payload and headers only.")));
  }
}

Datum insert_message(PG_FUNCTION_ARGS) {
  if (!CALLED_AS_TRIGGER(fcinfo))
    ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
                    errmsg("outbox._insert_message() is a trigger function")));
  auto* trigger = reinterpret_cast<TriggerData*>(fcinfo->context);
  NewRow row{trigger->tg_trigtuple, RelationGetDescr(trigger->tg_relation)};

  refuse_columns_of_ours(row);
  Field topic = row.field("topic");
  if (topic.null) refuse_null_topic();
  Message message;
  message.topic = topic.value;
  message.key = text_or_bytes(row, "key", "key_bytes");
  message.payload = text_or_bytes(row, "payload", "payload_bytes");
  message.headers = row.field("headers");
  check(message);

  int replaced = row.column("message_id");
  Datum value = UUIDPGetDatum(insert(message));
  bool null = false;
  return PointerGetDatum(heap_modify_tuple_by_cols(row.tuple, row.desc, 1, &replaced, &value, &null));
}

}  // namespace
}  // namespace outbox::enqueue

OUTBOX_SERVER_FUNCTION(outbox_insert_message, outbox::enqueue::insert_message);
