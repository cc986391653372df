// From the operator's properties to a librdkafka configuration: our defaults, then theirs, then what is fixed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "handles.hpp"
#include "publisher.hpp"

namespace outbox::publish {

enum class Route : std::uint8_t {
  batches,  // the normal producer
  alone     // one record a batch: for what Kafka refuses in company, and for topics with a small limit
};

struct Config {
  ConfHandle handle;
  std::string error;  // why there is no handle, without secrets
  std::int64_t batch_bytes = 0;
  std::size_t queue_messages = 0;
  bool compressed = false;
  std::string mechanism;  // sasl.mechanism
};

Config make_config(const Settings& settings, Route route);

}  // namespace outbox::publish
