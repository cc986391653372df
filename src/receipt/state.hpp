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
    std::int32_t generation;
    std::int32_t lane;
    Cursor cursor;
  };
  [[nodiscard]] const std::vector<LaneCursor>& cursors() const { return cursors_; }
  [[nodiscard]] std::int32_t generation_of(std::int32_t segment) const;
  [[nodiscard]] std::int32_t newest_generation() const { return newest_generation_; }
  // Segments whose progress log may hold the receipt of a message of `segment`: itself and later ones of its generation.
  [[nodiscard]] std::vector<std::int32_t> progress_segments(std::int32_t segment) const;

 private:
  std::vector<segment::Row> segments_;
  std::vector<LaneCursor> cursors_;
  std::int32_t newest_generation_ = 0;
};

// Lane numbers of outbox._lane.
std::vector<std::int32_t> read_lanes(Snapshot snapshot);

}  // namespace outbox::receipt
