#include "pg/error.hpp"

#include "pg/text.hpp"

namespace outbox::pg {

void raise_escaped(Escaped what, const char* text) {
  switch (what) {
    case Escaped::server_error:
      PG_RE_THROW();
    case Escaped::out_of_memory:
      ereport(ERROR, (errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory")));
    case Escaped::nothing:
    case Escaped::other:
      break;
  }
  ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR), errmsg("outbox: unexpected failure: %s", text)));
  pg_unreachable();
}

void recover(bool loud) {
  HOLD_INTERRUPTS();
  error_context_stack = nullptr;
  if (loud) EmitErrorReport();
  if (IsTransactionState() || IsTransactionOrTransactionBlock()) AbortCurrentTransaction();
  LWLockReleaseAll();
  MemoryContextSwitchTo(TopMemoryContext);
  FlushErrorState();
  RESUME_INTERRUPTS();
}

void error_message(char* buffer, size_t size, int* sqlstate) {
  MemoryContext before = MemoryContextSwitchTo(TopMemoryContext);
  ErrorData* error = CopyErrorData();
  // Which objects depend on it is in the detail; the hint would have the reader drop them, or the segment, by hand.
  const bool depends = error->sqlerrcode == ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST;
  const char* more = depends ? error->detail : error->hint;
  const int length =
      pg_snprintf(buffer, size, "%s%s%s", error->message ? error->message : "", more ? ": " : "", more ? more : "");
  end_at_character(buffer, size, length);
  if (sqlstate) *sqlstate = error->sqlerrcode;
  FreeErrorData(error);
  MemoryContextSwitchTo(before);
}

}  // namespace outbox::pg
