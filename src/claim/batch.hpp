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
    if (!block_ || used_ + size > block_->size) next_block(size);
    char* place = block_->memory.get() + used_;
    used_ += size;
    bytes_ += size;
    return place;
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  // Keeps the blocks of usual size: what the kernel gives back and takes again costs more than what is copied into it.
  void clear() {
    std::erase_if(blocks_, [](const Block& one) { return one.size > usual_size; });
    block_ = nullptr;
    next_ = used_ = bytes_ = 0;
  }

 private:
  static constexpr std::size_t usual_size = 256 * 1024;
  struct Block {
    std::unique_ptr<char[]> memory;
    std::size_t size;
  };
  void next_block(std::size_t size) {
    if (next_ == blocks_.size() || blocks_[next_].size < size) {
      const std::size_t room = size > usual_size ? size : usual_size;
      blocks_.insert(blocks_.begin() + static_cast<std::ptrdiff_t>(next_),
                     {std::make_unique_for_overwrite<char[]>(room), room});
    }
    block_ = &blocks_[next_++];
    used_ = 0;
  }
  std::vector<Block> blocks_;
  Block* block_ = nullptr;  // the one being filled, blocks_[next_ - 1]
  std::size_t next_ = 0;
  std::size_t used_ = 0;
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

  void reserve(std::size_t messages) {
    headers.reserve(messages);
    header_begin.reserve(messages);
    records.reserve(messages);
    origins.reserve(messages);
  }
  // As new, but with the memory.
  void clear() {
    arena.clear();
    headers.clear();
    header_begin.clear();
    records.clear();
    origins.clear();
    flushed = false;
    submitted = settled = 0;
  }
};

// Finished batches, whose memory the next ones use.
class SpareBatches {
 public:
  std::unique_ptr<Batch> take() {
    if (batches_.empty()) return std::make_unique<Batch>();
    std::unique_ptr<Batch> batch = std::move(batches_.back());
    batches_.pop_back();
    return batch;
  }
  void put(std::unique_ptr<Batch> batch) {
    constexpr std::size_t most = 16;
    if (batches_.size() == most) return;
    batch->clear();
    batches_.push_back(std::move(batch));
  }
  void clear() { batches_ = std::vector<std::unique_ptr<Batch>>(); }

 private:
  std::vector<std::unique_ptr<Batch>> batches_;
};

struct Budget {
  std::size_t messages = 2'000;  // what was read is still in the processor's cache when it is handed to librdkafka
  std::size_t cost = 8 * 1024 * 1024;
};

}  // namespace outbox::claim
