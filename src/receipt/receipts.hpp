// Receipts: which Kafka partition and offset each message got, packed into a few bytes a message. No server header.
//
// Messages stand in the order of the log. A message is three varints: the step of its id, the number of its
// (topic, partition) in order of first appearance, and the step of the offset within that partition, less one. The first
// time a number appears, the partition and the topic's length and name follow. Steps are zigzag-coded (as in Protocol
// Buffers: small numbers of either sign take one byte). Usual cost: 3 bytes a message.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace outbox::receipt {

struct Receipt {
  std::int64_t id = 0;
  std::string_view topic;
  std::int32_t partition = -1;
  std::int64_t offset = -1;  // -1: published, offset unknown
};

class Encoder {
 public:
  void add(const Receipt& receipt);
  [[nodiscard]] const std::string& bytes() const { return bytes_; }
  [[nodiscard]] std::size_t count() const { return count_; }
  [[nodiscard]] std::int64_t smallest_id() const { return smallest_; }
  [[nodiscard]] std::int64_t largest_id() const { return largest_; }
  void clear();

 private:
  struct Place {
    std::uint64_t number;
    std::int64_t offset;
  };
  void put(std::uint64_t value);
  void put_signed(std::int64_t value);

  using Partitions = std::unordered_map<std::int32_t, Place>;
  Partitions& partitions_of(std::string_view topic);

  std::string bytes_;
  std::unordered_map<std::string, Partitions> places_;
  std::uint64_t numbers_ = 0;
  const std::string* last_topic_ = nullptr;  // messages come in runs of one topic
  Partitions* last_partitions_ = nullptr;
  std::int64_t previous_id_ = 0;
  std::int64_t smallest_ = 0;
  std::int64_t largest_ = 0;
  std::size_t count_ = 0;
};

// Reads one receipt after another; ends at the end or at bytes that are no receipts. Allocates only for topics.
class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : rest_(bytes) {}
  std::optional<Receipt> next();

 private:
  struct Place {
    std::string_view topic;
    std::int32_t partition;
    std::int64_t offset;
  };
  bool get(std::uint64_t& value);
  bool get_signed(std::int64_t& value);

  std::string_view rest_;
  std::vector<Place> places_;
  std::int64_t previous_id_ = 0;
};

}  // namespace outbox::receipt
