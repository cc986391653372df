// The records that were submitted and have no outcome yet. A slot's number is what librdkafka carries as opaque, so a
// report finds its record in one step, whatever order reports come in and however far one record lags behind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "publisher.hpp"

namespace outbox::publish {

struct Topic;
using SlotId = std::uint32_t;

struct Slot {
  enum class Where : std::uint8_t { free, held, in_flight };
  Record record;
  Topic* topic = nullptr;
  Where where = Where::free;
};

// Memory is that of the most records there ever were at a time; nothing is allocated per record after that.
class Slots {
 public:
  SlotId take(const Record& record, Topic* topic) {
    if (free_.empty()) {
      slots_.emplace_back();
      free_.push_back(static_cast<SlotId>(slots_.size() - 1));
    }
    const SlotId id = free_.back();
    free_.pop_back();
    slots_[id] = {record, topic, Slot::Where::held};
    return id;
  }
  void release(SlotId id) {
    slots_[id].where = Slot::Where::free;
    free_.push_back(id);
  }
  Slot& operator[](SlotId id) { return slots_[id]; }
  [[nodiscard]] std::size_t used() const { return slots_.size() - free_.size(); }
  [[nodiscard]] std::size_t size() const { return slots_.size(); }

 private:
  std::vector<Slot> slots_;
  std::vector<SlotId> free_;
};

}  // namespace outbox::publish
