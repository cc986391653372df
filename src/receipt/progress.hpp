// The progress log: what each lane has published. Its newest row is the lane's cursor. C++ code, in a transaction.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "claim/snapshot.hpp"
#include "pg/postgres.hpp"
#include "segment/segment.hpp"

namespace outbox::receipt {

// Attribute numbers of outbox._progress.
enum ProgressColumn : AttrNumber {
  segment_column = 1,
  lane_column,
  seq_column,
  first_id_column,
  last_id_column,
  messages_column,
  sent_id_column,
  appended_at_column,
  completed_column,
  window_end_column
};

struct Cursor {
  std::int64_t seq = 0;                                  // of the row it was read from; 0: none yet
  claim::TransactionSnapshot completed;                  // everything finished in it is published
  std::optional<claim::TransactionSnapshot> window_end;  // a window is under way …
  std::int64_t sent_id = 0;                              // … and published up to this id

  [[nodiscard]] bool covers(std::uint64_t xid, std::int64_t id) const {
    return completed.finished(xid) || (window_end && id <= sent_id && window_end->finished(xid));
  }
};

// The newest cursor of a lane in the segments of a group; the empty snapshot if it has none.
Cursor read_cursor(const segment::Rows& segments, segment::Group group, int32 lane, Snapshot snapshot);

struct Refused {
  std::int64_t id = 0;
  std::uint64_t xid = 0;
  std::int32_t segment = 0;
  int error_code = 0;
  std::string reason;
};

struct Advance {
  int32 lane = 0;
  Cursor to;  // `seq` is the row the lane is known to stand at
  std::size_t messages = 0;
  std::int64_t first_id = 0;
  std::int64_t last_id = 0;
  std::string_view receipts;
  const std::vector<Refused>* refused = nullptr;
};

// Appends a row to the newest segment of the group, and the dead letters in the same transaction. False, and nothing is
// written, if the lane no longer stands where this process believes: then somebody else has it. Needs SPI; returns the new
// seq in `advance.to.seq`.
bool append(Advance& advance, segment::Group group);

}  // namespace outbox::receipt
