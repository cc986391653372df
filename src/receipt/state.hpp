// The state of messages as SQL shows it: derived from the cursors, stored nowhere. C++ code.
#pragma once

#include <vector>

#include "receipt/progress.hpp"

namespace outbox::receipt {

// Everything that is needed to tell the state of any message, as one snapshot shows it.
class Progress {
 public:
  explicit Progress(Snapshot snapshot);

  enum class State : std::uint8_t {
    pending,
    published,  // or a dead letter: Kafka's part is done
    copied      // outbox.adopt() has copied it to a newer segment
  };
  [[nodiscard]] State state(std::int32_t segment, std::int32_t lane, std::uint64_t xid, std::int64_t id) const;

  struct LaneCursor {
    segment::Group group;
    std::int32_t lane;
    Cursor cursor;
  };
  [[nodiscard]] const std::vector<LaneCursor>& cursors() const { return cursors_; }
  // nullptr if the lane has published nothing in the segment's group.
  [[nodiscard]] const Cursor* cursor(std::int32_t segment, std::int32_t lane) const;
  // Segments whose progress log may hold the receipt of a message of `segment`: itself and later ones of its group.
  [[nodiscard]] std::vector<std::int32_t> progress_segments(std::int32_t segment) const;

 private:
  [[nodiscard]] segment::Group group_of(std::int32_t segment) const;

  std::vector<segment::Row> segments_;
  std::vector<LaneCursor> cursors_;
  std::int32_t newest_generation_ = 0;
};

// The lanes of the default Kafka server in a layout.
std::vector<std::int32_t> read_lanes(std::int32_t layout, Snapshot snapshot);
// The lanes of all layouts that some segment which is not drained has.
std::vector<std::int32_t> read_lanes_in_use(Snapshot snapshot);

}  // namespace outbox::receipt
