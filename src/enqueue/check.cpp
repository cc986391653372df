// What is refused at once, before anything is written. Server code.
#include "enqueue/message.hpp"
#include "settings.hpp"

namespace outbox::enqueue {

namespace {

// Kafka's rule (org.apache.kafka.common.internals.Topic): 1 to 249 of [a-zA-Z0-9._-], not "." and not "..".
constexpr int longest_topic = 249;

bool legal_in_topic(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

}  // namespace

void check_topic(const text* topic) {
  const char* name = VARDATA_ANY(topic);
  const int size = static_cast<int>(VARSIZE_ANY_EXHDR(topic));
  const char* found = nullptr;
  if (size == 0)
    found = "The name is empty.";
  else if (size > longest_topic)
    found = psprintf("The name has %d characters, Kafka allows %d.", size, longest_topic);
  else if (size <= 2 && name[0] == '.' && name[size - 1] == '.')
    found = "Kafka reserves the names \".\" and \"..\".";
  else
    for (int i = 0; i < size && !found; i++)
      if (!legal_in_topic(name[i])) found = psprintf("The character at position %d is not allowed.", i + 1);
  if (!found) return;
  const int shown = pg_mbcliplen(name, size, longest_topic);
  ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("illegal topic name \"%.*s\"", shown, name),
                  errdetail("%s", found),
                  errhint("A topic name has 1 to 249 of the characters a-z, A-Z, 0-9, \".\", \"_\" and \"-\".")));
}

namespace {

void check_size(int64 size) {
  if (size <= settings::max_message_bytes) return;
  ereport(
      ERROR,
      (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED), errmsg("message of %lld bytes is too large", (long long)size),
       errdetail("Key, payload and headers together may have %d bytes (outbox.max_message_bytes).",
                 settings::max_message_bytes),
       errhint("Raise outbox.max_message_bytes and the topic's max.message.bytes, or send a reference to the data.")));
}

int64 size_of(const Field& field) {
  return field.null ? 0 : static_cast<int64>(toast_raw_datum_size(field.value)) - VARHDRSZ;
}

}  // namespace

void check_transaction(const char* function) {
  // In that order: on a standby the transaction is read-only as well, and the recovery is the reason to name.
  PreventCommandDuringRecovery(function);
  if (XactReadOnly)
    ereport(ERROR, (errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
                    errmsg("cannot execute %s in a read-only transaction", function),
                    errdetail("A message is written in the caller's transaction."),
                    errhint("Enqueue in a READ WRITE transaction.")));
  PreventCommandIfParallelMode(function);
}

void refuse_null_topic() {
  ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("topic must not be null"),
                  errdetail("Every message goes to a Kafka topic."), errhint("Pass the name of a topic.")));
  pg_unreachable();
}

void check(const Message& message) {
  check_topic(DatumGetTextPP(message.topic));
  int64 size = size_of(message.payload) + size_of(message.key);
  if (!message.headers.null) size += check_headers(DatumGetJsonbP(message.headers.value));
  check_size(size);
  check_transaction("outbox.enqueue()");
}

}  // namespace outbox::enqueue
