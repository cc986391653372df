#include "pg/text.hpp"

#include "pg/error.hpp"

namespace outbox::pg {

Bytes to_utf8(const char* data, int size, const char* what, const char* hint) {
  const int encoding = GetDatabaseEncoding();
  if (encoding == PG_UTF8 || size == 0) return {data, size};
  if (encoding == PG_SQL_ASCII) {
    if (!pg_verify_mbstr(PG_UTF8, data, size, true))
      ereport(ERROR, (errcode(ERRCODE_CHARACTER_NOT_IN_REPERTOIRE), errmsg("%s is not valid UTF-8", what),
                      errdetail("The database encoding is \"SQL_ASCII\", so the encoding of the text is not known."),
                      errhint("%s", hint)));
    return {data, size};
  }
  if (!OidIsValid(FindDefaultConversionProc(encoding, PG_UTF8)))
    ereport(ERROR,
            (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
             errmsg("%s cannot be published from a database with encoding \"%s\"", what, pg_encoding_to_char(encoding)),
             errdetail("Text is published as UTF-8, and PostgreSQL has no conversion from this encoding to UTF-8."),
             errhint("%s", hint)));
  char* converted = pg_server_to_any(data, size, PG_UTF8);
  return {converted, converted == data ? size : static_cast<int>(strlen(converted))};
}

Datum utf8_bytea(Datum text_value, const char* what) {
  // Text and bytea are both varlena: in a UTF-8 database the datum can be stored as it is.
  if (GetDatabaseEncoding() == PG_UTF8) return text_value;
  text* value = DatumGetTextPP(text_value);
  Bytes bytes = to_utf8(VARDATA_ANY(value), static_cast<int>(VARSIZE_ANY_EXHDR(value)), what);
  if (bytes.data == VARDATA_ANY(value)) return PointerGetDatum(value);
  return PointerGetDatum(cstring_to_text_with_len(bytes.data, bytes.size));
}

void copy_text(char* to, const char* from, size_t size) { end_at_character(to, size, strlcpy(to, from, size)); }

void end_at_character(char* text, size_t size, size_t length) {
  if (length < size) return;
  const int limit = static_cast<int>(size) - 1;
  text[pg_mbcliplen(text, limit, limit)] = '\0';
}

namespace {

// Shows bytes as text where the database can: NULL rather than an error, for a view over everybody's payloads.
Datum bytes_as_text(PG_FUNCTION_ARGS) {
  bytea* value = PG_GETARG_BYTEA_PP(0);
  const char* data = VARDATA_ANY(value);
  const int size = static_cast<int>(VARSIZE_ANY_EXHDR(value));
  if (memchr(data, '\0', size) != nullptr || !pg_verify_mbstr(PG_UTF8, data, size, true)) PG_RETURN_NULL();
  const int encoding = GetDatabaseEncoding();
  if (encoding == PG_UTF8 || encoding == PG_SQL_ASCII || size == 0)
    PG_RETURN_TEXT_P(cstring_to_text_with_len(data, size));

  Oid conversion = FindDefaultConversionProc(PG_UTF8, encoding);
  if (!OidIsValid(conversion)) PG_RETURN_NULL();
  const Size room = static_cast<Size>(size) * MAX_CONVERSION_GROWTH + 1;
  if (room >= MaxAllocSize) PG_RETURN_NULL();
  auto* converted = static_cast<unsigned char*>(palloc(room));
  int done = pg_do_encoding_conversion_buf(conversion, PG_UTF8, encoding,
                                           reinterpret_cast<unsigned char*>(const_cast<char*>(data)), size, converted,
                                           static_cast<int>(room), true);
  if (done != size) PG_RETURN_NULL();
  PG_RETURN_TEXT_P(cstring_to_text(reinterpret_cast<char*>(converted)));
}

}  // namespace
}  // namespace outbox::pg

OUTBOX_SERVER_FUNCTION(outbox_text, outbox::pg::bytes_as_text);
