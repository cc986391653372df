#include "receipt/receipts.hpp"

#include <algorithm>

namespace outbox::receipt {

void Encoder::put(std::uint64_t value) {
  while (value >= 0x80) {
    bytes_.push_back(static_cast<char>((value & 0x7f) | 0x80));
    value >>= 7;
  }
  bytes_.push_back(static_cast<char>(value));
}

void Encoder::put_signed(std::int64_t value) {
  put((static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63));
}

void Encoder::add(const Receipt& receipt) {
  smallest_ = count_ == 0 ? receipt.id : std::min(smallest_, receipt.id);
  largest_ = count_ == 0 ? receipt.id : std::max(largest_, receipt.id);
  count_++;
  put_signed(receipt.id - previous_id_);
  previous_id_ = receipt.id;

  auto [it, is_new] = partitions_of(receipt.topic).try_emplace(receipt.partition, Place{numbers_, 0});
  if (is_new) numbers_++;
  put(it->second.number);
  if (is_new) {
    put_signed(receipt.partition);
    put(receipt.topic.size());
    bytes_.append(receipt.topic);
  }
  put_signed(receipt.offset - it->second.offset - 1);
  it->second.offset = receipt.offset;
}

Encoder::Partitions& Encoder::partitions_of(std::string_view topic) {
  if (last_topic_ && *last_topic_ == topic) return *last_partitions_;
  auto& [name, partitions] = *places_.try_emplace(std::string(topic)).first;
  last_topic_ = &name;
  last_partitions_ = &partitions;
  return partitions;
}

void Encoder::clear() {
  bytes_.clear();
  places_.clear();
  numbers_ = 0;
  last_topic_ = nullptr;
  last_partitions_ = nullptr;
  previous_id_ = 0;
  count_ = 0;
}

bool Decoder::get(std::uint64_t& value) {
  value = 0;
  for (unsigned shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(rest_.front());
    rest_.remove_prefix(1);
    value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
    if ((byte & 0x80) == 0) return true;
  }
  return false;
}

bool Decoder::get_signed(std::int64_t& value) {
  std::uint64_t coded = 0;
  if (!get(coded)) return false;
  value = static_cast<std::int64_t>(coded >> 1) ^ -static_cast<std::int64_t>(coded & 1);
  return true;
}

std::optional<Receipt> Decoder::next() {
  std::int64_t step = 0;
  std::uint64_t number = 0;
  if (!get_signed(step) || !get(number) || number > places_.size()) return std::nullopt;
  if (number == places_.size()) {
    std::int64_t partition = 0;
    std::uint64_t length = 0;
    if (!get_signed(partition) || !get(length) || length > rest_.size()) return std::nullopt;
    places_.push_back({rest_.substr(0, length), static_cast<std::int32_t>(partition), 0});
    rest_.remove_prefix(length);
  }
  std::int64_t offset_step = 0;
  if (!get_signed(offset_step)) return std::nullopt;
  Place& place = places_[number];
  place.offset += offset_step + 1;
  previous_id_ += step;
  return Receipt{previous_id_, place.topic, place.partition, place.offset};
}

}  // namespace outbox::receipt
