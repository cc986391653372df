#include "pg/error.hpp"

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
  pg_snprintf(buffer, size, "%s%s%s", error->message ? error->message : "", error->hint ? ": " : "",
              error->hint ? error->hint : "");
  if (sqlstate) *sqlstate = error->sqlerrcode;
  FreeErrorData(error);
  MemoryContextSwitchTo(before);
}

}  // namespace outbox::pg
