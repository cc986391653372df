// What is done once with a segment in which everything is published: it is frozen and loses the index that only publishing
// needs; and with outbox.archive_mode = function a function of the users takes it. All of it may take long, so it is done by a
// process of its own.
#pragma once

#include <cstdint>

#include "segment/log.hpp"

namespace outbox::segment {

// Before it is everything that no snapshot and no transaction can see otherwise than as it is. Server code, in a transaction.
TransactionId freeze_horizon();
bool can_be_frozen(const Entry& entry, TransactionId horizon);

// VACUUM (FREEZE). Server code, outside a transaction.
void freeze(Oid table);
// False: the vacuum has left it out, as somebody had locked it. Server code, in a transaction.
bool is_frozen(const Entry& entry);

// Drops the index of the window and writes that the segment is archived. False: somebody uses the table. Server code.
bool keep(std::int32_t segment);

// ---- the archive function

struct ArchiveFunction {
  bool registered;
  char name[512];  // with schema and argument
  char role[NAMEDATALEN];
  char owner[NAMEDATALEN];  // of the function, when it was registered
  TimestampTz registered_at;
};
// Server code.
ArchiveFunction read_archive_function(Snapshot snapshot);

// When the function is due: at once, and after failures later and later. 0: it has taken the segment.
TimestampTz function_due_at(const Entry& entry, TimestampTz registered_at);

// Calls it, in a transaction of its own, for a segment that it has not taken, as the role that registered it. An error of it is
// an ERROR. What it has done to the session, who knows: the process must end then. Server code, outside a transaction.
void call_archive_function(std::int32_t segment);
// In the transaction after one that has failed. With our settings again. Server code.
void note_failure(std::int32_t segment, const char* why);

}  // namespace outbox::segment
