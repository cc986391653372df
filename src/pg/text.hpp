// Text between the database encoding and UTF-8. Server code.
#pragma once

#include "pg/postgres.hpp"

namespace outbox::pg {

struct Bytes {
  const char* data;
  int size;
};

// Text of this database as UTF-8; `what` names it in the error. In SQL_ASCII text that is not UTF-8 is refused (22021).
Bytes to_utf8(const char* data, int size, const char* what, const char* hint = "Pass the bytes as bytea.");

// A bytea with these UTF-8 bytes, or the datum itself where the bytes are the same.
Datum utf8_bytea(Datum text_value, const char* what);

// strlcpy(), but what does not fit is cut between two characters of the database's encoding: half a character makes whatever
// it is shown or stored in unreadable.
void copy_text(char* to, const char* from, size_t size);
// The same for what snprintf() and the like have written: `length` is what they return.
void end_at_character(char* text, size_t size, size_t length);

}  // namespace outbox::pg
