// Messages read from the log, with the memory they stand in. Plain values: no server header, no librdkafka.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "publish/publisher.hpp"

namespace outbox::claim {

// Memory that only grows and does not move, so that string_views into it stay valid.
class Arena {
 public:
  std::string_view copy(const char* data, std::size_t size) {
    char* to = reserve(size);
    if (size > 0) std::memcpy(to, data, size);
    return {to, size};
  }
  char* reserve(std::size_t size) {
    if (blocks_.empty() || used_ + size > room_) grow(size);
    char* place = blocks_.back().get() + used_;
    used_ += size;
    bytes_ += size;
    return place;
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  static constexpr std::size_t block = 256 * 1024;
  void grow(std::size_t size) {
    room_ = size > block ? size : block;
    blocks_.push_back(std::make_unique_for_overwrite<char[]>(room_));
    used_ = 0;
  }
  std::vector<std::unique_ptr<char[]>> blocks_;
  std::size_t used_ = 0;
  std::size_t room_ = 0;
  std::size_t bytes_ = 0;
};

// Where a record comes from and what became of it.
struct Origin {
  std::int64_t id = 0;
  std::uint64_t xid = 0;
  std::int64_t enqueued_at = 0;  // TimestampTz
  std::int32_t segment = 0;
  std::uint32_t bytes = 0;  // key and payload
  std::uint32_t window = 0;

  enum class Fate : std::uint8_t { open, published, dead };
  Fate fate = Fate::open;
  std::int32_t partition = -1;
  std::int64_t offset = -1;
};

// Owner: the worker. Lives until the last of its records was taken into a lane's progress.
struct Batch {
  Arena arena;
  std::vector<publish::Header> headers;   // of all records, one after another
  std::vector<std::size_t> header_begin;  // where each record's begin
  std::vector<publish::Record> records;
  std::vector<Origin> origins;  // parallel to records
  std::uint64_t first_ticket = 0;
  std::int32_t lane = 0;
  bool flushed = false;  // the commits of its messages are on disk
  std::size_t submitted = 0;
  std::size_t settled = 0;  // records taken into progress

  // What it costs in memory, here and in librdkafka.
  [[nodiscard]] std::size_t cost() const {
    constexpr std::size_t each_header = 160;
    constexpr std::size_t each_record = 300;
    return arena.bytes() + headers.size() * each_header + records.size() * each_record;
  }
  [[nodiscard]] bool done() const { return settled == records.size(); }
};

struct Budget {
  std::size_t messages = 10'000;
  std::size_t cost = 8 * 1024 * 1024;
};

}  // namespace outbox::claim
