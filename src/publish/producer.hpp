// One librdkafka producer: its handle, its queues, its topic handles. Says what librdkafka says, decides nothing.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "config.hpp"
#include "handles.hpp"
#include "publisher.hpp"

namespace outbox::publish {

// Owner: the publisher. Thread: the publisher's; librdkafka's own threads only write a byte into `wake_fd`.
//
// Payloads are not copied: until a record's report was taken, or this object is destroyed, librdkafka reads the
// caller's memory. It copies keys and headers. After ~Producer() nothing refers to a record.
class Producer {
 public:
  // Null and `error` when librdkafka refuses the configuration as a whole.
  static std::unique_ptr<Producer> create(Config config, int wake_fd, std::string& error);

  TopicHandle topic(const std::string& name);

  // `opaque` comes back with the report.
  rd_kafka_resp_err_t send(rd_kafka_topic_t* topic, const Record& record, void* opaque);

  // Null when there is none; never waits longer than `wait`.
  EventHandle next_event(std::chrono::milliseconds wait = std::chrono::milliseconds(0));

  struct Lookup {
    rd_kafka_resp_err_t request = RD_KAFKA_RESP_ERR_NO_ERROR;     // of asking
    rd_kafka_resp_err_t topic = RD_KAFKA_RESP_ERR_NO_ERROR;       // of the topic, when an answer came
    std::unordered_map<std::string, rd_kafka_resp_err_t> topics;  // when all were asked for
    bool controller_known = false;  // request_limits() goes through it and would wait for it
  };
  // Asks for the topic's metadata; a broker that creates topics by itself creates it. Null: asks for all
  // topics that have a handle, in one request; also without any, whether a broker is there.
  Lookup look_up(rd_kafka_topic_t* topic, std::chrono::milliseconds timeout);

  // The answer is an event.
  void request_limits(const std::vector<std::string>& topics, std::chrono::milliseconds timeout);

  // Empty unless a fatal error was raised.
  [[nodiscard]] std::string fatal_error() const;

  enum class Purge : std::uint8_t { queued, everything };
  void purge(Purge what);

 private:
  explicit Producer(KafkaHandle handle, int wake_fd);

  KafkaHandle kafka_;
  QueueHandle events_;  // reports, errors, log
  QueueHandle admin_;   // answers to DescribeConfigs
};

}  // namespace outbox::publish
