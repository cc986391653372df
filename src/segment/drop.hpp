// The end of a segment: its tables are dropped, or moved to the schema outbox_archive where they belong to the operators.
// C++ code, in a transaction with SPI and the rights of the extension's owner.
//
// The newest progress of a lane is its cursor. What of it stands in the segment's progress log is first copied to the newest
// one of its group that stays: so a lane that has published nothing since still knows how far it is.
#pragma once

#include <cstdint>

#include "segment/log.hpp"

namespace outbox::segment {

enum class Dropped : uint8 {
  yes,
  parents_locked,  // somebody uses the log
  locked,          // somebody uses the segment's tables
  busy,            // a lane's progress is being written just now
  behind           // the stored progress of a lane does not reach the segment's end: it is not drained after all
};

// Takes its locks if they are free, and waits for none. Anything but `yes`: the transaction is to be aborted.
Dropped drop(std::int32_t segment, bool detach);

constexpr const char* archive_schema = "outbox_archive";

}  // namespace outbox::segment
