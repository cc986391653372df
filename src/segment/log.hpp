// What outbox._segment and _segment_event say about each segment, for those who look after it. Server code.
#pragma once

#include "pg/postgres.hpp"
#include "segment/segment.hpp"

namespace outbox::segment {

struct Entry {
  Row row;
  Oid messages;  // InvalidOid: somebody has dropped the table
  Oid progress;
  TimestampTz opened_at;
  Datum moment;  // pg_snapshot in which all its writers had ended; 0: not seen yet
  TimestampTz drained_at;
  TransactionId drained_by;  // later than every transaction that wrote to it
  bool kept;                 // archived in place: frozen, and without the index of the window
  bool taken;                // by the archive function
  int failures;              // of the archive function
  TimestampTz failed_at;
};

struct Log {
  Entry* entries;  // ascending, palloc'd; without what is dropped or detached
  int count;
  int32* gone;  // segments whose rows nobody needs any more, not even in an old snapshot
  int gone_count;
  int gone_in_all;  // also those that some old snapshot may still show
};
Log read_log(Snapshot snapshot);
const Entry* find(const Log& log, int32 segment);

// In this transaction; `moment` a pg_snapshot or 0, `note` may be null. Needs SPI, and the rights of the extension's owner.
void add_event(int32 segment, const char* event, Datum moment, const char* note);
// Deletes the rows of segments that are gone.
void forget(const Log& log);

// With this lock held no roll is half done, and none begins. False: somebody rolls just now.
bool lock_log();

}  // namespace outbox::segment
