// What a topic accepts, as its broker says, and whether one record fits: everything that can be known before producing.
#pragma once

#include <librdkafka/rdkafka.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "publisher.hpp"

namespace outbox::publish {

// Nothing set: nothing is known, and nothing is refused beforehand.
struct Limits {
  std::optional<std::int64_t> max_message_bytes;
  std::optional<std::int64_t> before_max_ms;  // only when the topic keeps the producer's timestamps
  std::optional<std::int64_t> after_max_ms;
  bool compacted = false;
};

struct LimitsAnswer {
  std::string topic;
  Limits limits;
};

// Bytes of a record batch (format 2) that holds this record alone and uncompressed: what Kafka compares with the limit.
std::size_t batch_bytes(const Record& record);

struct Refusal {
  int error_code;
  std::string reason;
};

// `now_ms`: wall clock. `compressed`: the size on the wire is not known, so it is not judged.
std::optional<Refusal> refuse_beforehand(const Record& record, const Limits& limits, std::int64_t now_ms,
                                         bool compressed);

// Reads the answer to DescribeConfigs; topics whose configuration may not be read come back without limits.
std::vector<LimitsAnswer> read_limits(const rd_kafka_event_t* event);

}  // namespace outbox::publish
