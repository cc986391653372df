// The Kafka cluster as a foreign server: what CREATE SERVER may say, and what the worker reads from it.
#pragma once

#include <optional>
#include <string>

#include "pg/postgres.hpp"
#include "publish/publisher.hpp"

namespace outbox::worker {

struct KafkaServer {
  std::optional<publish::Settings> settings;  // nullopt: unconfigured, for `reason`
  std::string reason;
  std::string files;  // changes when a file does that an option names: librdkafka reads them only once
};

// C++ code, in a transaction. Uses a server only if its owner is the extension's owner or a superuser: whoever may create
// a server of that name must not redirect the messages.
KafkaServer read_kafka_server(const char* name);

}  // namespace outbox::worker
