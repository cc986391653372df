// When is everything in a rolled segment published? Judged in this order:
//  1. quiet: nobody holds a lock to write to it, prepared transactions included; nobody can get one, since the roll is over.
//     Then a snapshot S is taken: every writer of the segment is finished in it.
//  2. drained: the stored cursor of every lane is at or past S.
#pragma once

#include <vector>

#include "receipt/progress.hpp"
#include "segment/log.hpp"

namespace outbox::segment {

// Needs no transaction. Server code.
bool has_writers(Oid table);
// With lock_log() held. C++ code.
void note_quiet(const Entry& entry);
// C++ code.
bool is_published(const Entry& entry, const Log& log, Snapshot snapshot);

// The newest progress of each lane of the segment's layout, of all Kafka servers. C++ code.
struct LaneCursor {
  std::int32_t lane;
  receipt::Cursor cursor;  // `seq` 0: none
};
std::vector<LaneCursor> cursors_of(const Entry& entry, const Log& log, Snapshot snapshot);

}  // namespace outbox::segment
