// Headers as the caller gives them: a JSON object of strings, nulls and arrays of these. Server code.
#include "enqueue/message.hpp"
#include "pg/text.hpp"

namespace outbox::enqueue {

namespace {

// What a header costs besides its bytes: without it a message could carry any number of empty ones.
constexpr int64 each_header = 8;

constexpr const char* text_only = "Headers are text in UTF-8.";

[[noreturn]] void refuse(const char* message, const char* detail) {
  ereport(ERROR,
          (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("%s", message), errdetail("%s", detail),
           errhint("Headers are a JSON object: a string is a header, null a null header, an array of strings and nulls "
                   "a repeated header.")));
  pg_unreachable();
}

int64 check_name(const JsonbValue& name) {
  const pg::Bytes utf8 = pg::to_utf8(name.val.string.val, name.val.string.len, "header name", text_only);
  if (utf8.size == 2 && memcmp(utf8.data, "id", 2) == 0)
    ereport(ERROR,
            (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("header name \"id\" is reserved"),
             errdetail("Each record carries the message_id in the header \"id\"."), errhint("Choose another name.")));
  if (utf8.size >= 7 && memcmp(utf8.data, "outbox-", 7) == 0)
    ereport(ERROR,
            (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
             errmsg("header name \"%.*s\" is reserved", name.val.string.len, name.val.string.val),
             errdetail("Names that start with \"outbox-\" belong to the extension."), errhint("Choose another name.")));
  return utf8.size;
}

const char* kind_of(const JsonbValue& value) {
  switch (value.type) {
    case jbvNumeric:
      return "number";
    case jbvBool:
      return "boolean";
    case jbvArray:
      return "array";
    case jbvObject:
      return "object";
    case jbvBinary:
      return JsonContainerIsArray(value.val.binary.data) ? "array" : "object";
    default:
      return "value";
  }
}

int64 check_value(const JsonbValue& name, const JsonbValue& value) {
  if (value.type == jbvNull) return 0;
  if (value.type == jbvString)
    return pg::to_utf8(value.val.string.val, value.val.string.len, "header value", text_only).size;
  refuse(psprintf("header \"%.*s\" has a value that is neither a string nor null", name.val.string.len,
                  name.val.string.val),
         psprintf("The value is a JSON %s.", kind_of(value)));
}

int64 check_repeated(const JsonbValue& name, JsonbContainer* array, int64 name_size) {
  int64 size = 0;
  JsonbIterator* it = JsonbIteratorInit(array);
  JsonbValue value;
  JsonbIteratorToken token;
  while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
    if (token == WJB_ELEM) size += each_header + name_size + check_value(name, value);
  return size;
}

}  // namespace

int64 check_headers(Jsonb* headers) {
  if (!JB_ROOT_IS_OBJECT(headers)) {
    const char* kind = JB_ROOT_IS_SCALAR(headers) ? "scalar" : "array";
    refuse("headers must be a JSON object", psprintf("The value is a JSON %s.", kind));
  }
  int64 size = 0;
  int64 name_size = 0;
  JsonbIterator* it = JsonbIteratorInit(&headers->root);
  JsonbValue name;
  JsonbValue value;
  JsonbIteratorToken token = JsonbIteratorNext(&it, &value, true);
  while ((token = JsonbIteratorNext(&it, token == WJB_KEY ? &value : &name, true)) != WJB_DONE) {
    if (token == WJB_KEY) {
      name_size = check_name(name);
    } else if (token == WJB_VALUE) {
      if (value.type == jbvBinary && JsonContainerIsArray(value.val.binary.data))
        size += check_repeated(name, value.val.binary.data, name_size);
      else
        size += each_header + name_size + check_value(name, value);
    }
  }
  return size;
}

}  // namespace outbox::enqueue
