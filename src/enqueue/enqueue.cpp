// outbox.enqueue(): turns SQL arguments into a message and inserts it. Server code.
#include <initializer_list>

#include "enqueue/message.hpp"
#include "pg/error.hpp"
#include "pg/text.hpp"

namespace outbox::enqueue {

namespace {

enum Argument : int { topic_arg, payload_arg, key_arg, headers_arg, publish_at_arg, dedup_key_arg };

void refuse_later_arguments(FunctionCallInfo fcinfo) {
  for (int argument : {publish_at_arg, dedup_key_arg}) {
    if (PG_ARGISNULL(argument)) continue;
    ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                    errmsg("%s is not supported yet", argument == publish_at_arg ? "publish_at" : "dedup_key"),
                    errdetail("This version publishes every message as soon as its transaction commits."),
                    errhint("Leave the argument out.")));
  }
}

Datum finish(FunctionCallInfo fcinfo, Field payload, Field key) {
  if (PG_ARGISNULL(topic_arg)) refuse_null_topic();
  refuse_later_arguments(fcinfo);
  Message message;
  message.topic = PG_GETARG_DATUM(topic_arg);
  message.payload = payload;
  message.key = key;
  if (!PG_ARGISNULL(headers_arg)) message.headers = {PG_GETARG_DATUM(headers_arg), false};
  check(message);
  PG_RETURN_UUID_P(insert(message));
}

Field text_argument(FunctionCallInfo fcinfo, int argument, const char* what) {
  if (PG_ARGISNULL(argument)) return {};
  return {pg::utf8_bytea(PG_GETARG_DATUM(argument), what), false};
}

Field bytea_argument(FunctionCallInfo fcinfo, int argument) {
  if (PG_ARGISNULL(argument)) return {};
  return {PG_GETARG_DATUM(argument), false};
}

Datum enqueue_text(PG_FUNCTION_ARGS) {
  return finish(fcinfo, text_argument(fcinfo, payload_arg, "payload"), text_argument(fcinfo, key_arg, "key"));
}

Datum enqueue_jsonb(PG_FUNCTION_ARGS) {
  Field payload;
  if (!PG_ARGISNULL(payload_arg)) {
    Jsonb* value = PG_GETARG_JSONB_P(payload_arg);
    char* written = JsonbToCString(nullptr, &value->root, static_cast<int>(VARSIZE(value)));
    payload = {pg::utf8_bytea(PointerGetDatum(cstring_to_text(written)), "payload"), false};
  }
  return finish(fcinfo, payload, text_argument(fcinfo, key_arg, "key"));
}

Datum enqueue_bytea(PG_FUNCTION_ARGS) {
  return finish(fcinfo, bytea_argument(fcinfo, payload_arg), text_argument(fcinfo, key_arg, "key"));
}

Datum enqueue_bytea_key(PG_FUNCTION_ARGS) {
  return finish(fcinfo, bytea_argument(fcinfo, payload_arg), bytea_argument(fcinfo, key_arg));
}

}  // namespace
}  // namespace outbox::enqueue

OUTBOX_SERVER_FUNCTION(outbox_enqueue_text, outbox::enqueue::enqueue_text);
OUTBOX_SERVER_FUNCTION(outbox_enqueue_jsonb, outbox::enqueue::enqueue_jsonb);
OUTBOX_SERVER_FUNCTION(outbox_enqueue_bytea, outbox::enqueue::enqueue_bytea);
OUTBOX_SERVER_FUNCTION(outbox_enqueue_bytea_key, outbox::enqueue::enqueue_bytea_key);
