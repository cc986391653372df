// Gets a record and its topic's limits, hands on a refusal if Kafka could only refuse it.
#include "limits.hpp"

#include <charconv>

namespace outbox::publish {

namespace {

constexpr std::size_t batch_overhead =
    61;  // base offset to record count, in org.apache.kafka.common.record.DefaultRecordBatch

constexpr std::size_t varint_bytes(std::int64_t value) {
  auto zigzag = (static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63);
  std::size_t bytes = 1;
  while (zigzag >= 0x80) {
    zigzag >>= 7;
    ++bytes;
  }
  return bytes;
}

std::size_t field_bytes(const std::optional<std::string_view>& field) {
  if (!field) return 1;  // length -1
  return varint_bytes(static_cast<std::int64_t>(field->size())) + field->size();
}

std::string about(const Record& record) { return "topic \"" + std::string(record.topic) + "\": "; }

std::optional<Refusal> refuse_size(const Record& record, std::int64_t limit) {
  const auto bytes = static_cast<std::int64_t>(batch_bytes(record));
  if (bytes <= limit) return std::nullopt;
  return Refusal{RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE,
                 about(record) + "the message needs " + std::to_string(bytes) +
                     " bytes in Kafka, and max.message.bytes of the topic is " + std::to_string(limit) +
                     "; raise max.message.bytes of the topic, or set compression.type for the server"};
}

std::optional<Refusal> refuse_time(const Record& record, const Limits& limits, std::int64_t now_ms) {
  const auto age = now_ms - record.timestamp_ms;
  const char* setting = nullptr;
  std::int64_t limit = 0;
  if (limits.before_max_ms && age > *limits.before_max_ms) {
    setting = "message.timestamp.before.max.ms";
    limit = *limits.before_max_ms;
  } else if (limits.after_max_ms && -age > *limits.after_max_ms) {
    setting = "message.timestamp.after.max.ms";
    limit = *limits.after_max_ms;
  }
  if (setting == nullptr) return std::nullopt;
  const auto distance = age < 0 ? -age : age;
  return Refusal{RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP,
                 about(record) + "the message's time is " + std::to_string(distance) + " ms " +
                     (age < 0 ? "after" : "before") + " now, and " + setting + " of the topic is " +
                     std::to_string(limit) + "; raise it, or set message.timestamp.type=LogAppendTime"};
}

std::optional<std::int64_t> number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

struct RawLimits {
  Limits limits;
  std::optional<std::int64_t> difference;  // before Kafka 3.6 one limit for both directions
  bool log_append_time = false;

  void take(std::string_view name, std::string_view value) {
    if (name == "max.message.bytes") limits.max_message_bytes = number(value);
    if (name == "message.timestamp.before.max.ms") limits.before_max_ms = number(value);
    if (name == "message.timestamp.after.max.ms") limits.after_max_ms = number(value);
    if (name == "message.timestamp.difference.max.ms") difference = number(value);
    if (name == "message.timestamp.type") log_append_time = value == "LogAppendTime";
    if (name == "cleanup.policy") limits.compacted = value.find("compact") != std::string_view::npos;
  }

  Limits result() {
    if (!limits.before_max_ms) limits.before_max_ms = difference;
    if (!limits.after_max_ms) limits.after_max_ms = difference;
    if (log_append_time) limits.before_max_ms = limits.after_max_ms = std::nullopt;
    return limits;
  }
};

}  // namespace

std::size_t batch_bytes(const Record& record) {
  std::size_t body = 3;  // attributes, timestamp delta 0, offset delta 0
  body += field_bytes(record.key) + field_bytes(record.payload);
  body += varint_bytes(static_cast<std::int64_t>(record.headers.size()));
  for (const auto& header : record.headers) body += field_bytes(header.name) + field_bytes(header.value);
  return batch_overhead + varint_bytes(static_cast<std::int64_t>(body)) + body;
}

std::optional<Refusal> refuse_beforehand(const Record& record, const Limits& limits, std::int64_t now_ms,
                                         bool compressed) {
  if (limits.compacted && !record.key) {
    return Refusal{
        RD_KAFKA_RESP_ERR_INVALID_RECORD,
        about(record) + "the message has no key, and cleanup.policy of the topic is compact; give the message a key"};
  }
  if (limits.max_message_bytes && !compressed) {
    if (auto refusal = refuse_size(record, *limits.max_message_bytes)) return refusal;
  }
  if (limits.before_max_ms || limits.after_max_ms) return refuse_time(record, limits, now_ms);
  return std::nullopt;
}

std::vector<LimitsAnswer> read_limits(const rd_kafka_event_t* event) {
  std::vector<LimitsAnswer> answers;
  const auto* result = rd_kafka_event_DescribeConfigs_result(const_cast<rd_kafka_event_t*>(event));
  if (result == nullptr) return answers;
  std::size_t count = 0;
  const auto* resources = rd_kafka_DescribeConfigs_result_resources(result, &count);
  for (std::size_t i = 0; i < count; ++i) {
    RawLimits raw;
    std::size_t entries = 0;
    const auto* configs = rd_kafka_ConfigResource_configs(resources[i], &entries);
    for (std::size_t j = 0; j < entries && rd_kafka_ConfigResource_error(resources[i]) == RD_KAFKA_RESP_ERR_NO_ERROR;
         ++j) {
      const char* value = rd_kafka_ConfigEntry_value(configs[j]);
      if (value != nullptr) raw.take(rd_kafka_ConfigEntry_name(configs[j]), value);
    }
    answers.push_back({rd_kafka_ConfigResource_name(resources[i]), raw.result()});
  }
  return answers;
}

}  // namespace outbox::publish
