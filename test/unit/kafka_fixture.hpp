// What the tests of publish/ share: librdkafka's mock cluster, a consumer, and a driver that polls until something holds.
#pragma once

#include <gtest/gtest.h>
#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>
#include <poll.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../../src/publish/handles.hpp"
#include "../../src/publish/publisher.hpp"

namespace outbox::publish::test {

using namespace std::chrono_literals;

inline constexpr std::int16_t produce_api = 0;
inline constexpr std::int16_t metadata_api = 3;
inline constexpr std::int16_t init_producer_id_api = 22;

// Brokers inside this process. They check no sizes, timestamps or rights, and know no DescribeConfigs.
class MockKafka {
 public:
  explicit MockKafka(int brokers = 1) {
    std::array<char, 512> text{};
    kafka_.reset(rd_kafka_new(RD_KAFKA_PRODUCER, rd_kafka_conf_new(), text.data(), text.size()));
    if (!kafka_) throw std::runtime_error(text.data());
    cluster_.reset(rd_kafka_mock_cluster_new(kafka_.get(), brokers));
  }
  [[nodiscard]] std::string bootstrap() const { return rd_kafka_mock_cluster_bootstraps(cluster_.get()); }
  void create_topic(const std::string& name, int partitions) {
    rd_kafka_mock_topic_create(cluster_.get(), name.c_str(), partitions, 1);
  }
  void set_topic_error(const std::string& name, rd_kafka_resp_err_t error) {
    rd_kafka_mock_topic_set_error(cluster_.get(), name.c_str(), error);
  }
  // The next requests of this kind are answered with these errors, one each.
  void fail_next(std::int16_t api, const std::vector<rd_kafka_resp_err_t>& errors) {
    rd_kafka_mock_push_request_errors_array(cluster_.get(), api, errors.size(), errors.data());
  }
  void stop_failing(std::int16_t api) { rd_kafka_mock_clear_request_errors(cluster_.get(), api); }
  void down() { rd_kafka_mock_broker_set_down(cluster_.get(), 1); }
  void up() { rd_kafka_mock_broker_set_up(cluster_.get(), 1); }
  void delay(std::chrono::milliseconds rtt) {
    rd_kafka_mock_broker_set_rtt(cluster_.get(), 1, static_cast<int>(rtt.count()));
  }

 private:
  KafkaHandle kafka_;
  std::unique_ptr<rd_kafka_mock_cluster_t, Deleter<rd_kafka_mock_cluster_destroy>> cluster_;
};

struct Received {
  std::int32_t partition = -1;
  std::int64_t offset = -1;
  std::int64_t timestamp_ms = -1;
  std::optional<std::string> key;
  std::optional<std::string> payload;
  std::vector<std::pair<std::string, std::optional<std::string>>> headers;
};

// Everything on the topic, partition by partition in order of offset. Throws when `count` records do not come in time.
std::vector<Received> consume(const std::string& bootstrap, const std::string& topic, std::size_t count,
                              std::chrono::seconds limit = 20s);

// Everything that is on the topic now.
std::vector<Received> consume_all(const std::string& bootstrap, const std::string& topic);

// A publisher with the memory of the records given to it.
class Driver {
 public:
  explicit Driver(std::vector<Property> properties, std::int64_t max_message_bytes = 1'000'000);

  struct Message {
    std::string topic;
    std::optional<std::string> key;
    std::optional<std::string> payload;
    std::vector<std::pair<std::string, std::optional<std::string>>> headers{};
    std::optional<std::int64_t> timestamp_ms{};
  };
  // False when the publisher does not take it. The ticket of what it took last is last_ticket().
  bool try_submit(Message message);
  // Polls until it is taken.
  std::uint64_t submit(Message message);
  void skip_tickets(std::uint64_t count) { next_ticket_ += count; }

  // Waits as the worker does, on wake_fd and next_poll.
  bool poll_until(const std::function<bool()>& done, std::chrono::milliseconds limit = 20s);
  bool poll_until_all_done(std::chrono::milliseconds limit = 20s);
  void poll_once();

  Publisher& publisher() { return *publisher_; }
  void destroy() { publisher_.reset(); }
  void close(std::chrono::milliseconds limit);

  [[nodiscard]] const Outcome* outcome(std::uint64_t ticket) const;
  [[nodiscard]] std::size_t published() const { return published_; }
  [[nodiscard]] std::size_t refused() const { return refused_; }
  [[nodiscard]] std::size_t repeated() const { return repeated_; }
  [[nodiscard]] std::uint64_t last_ticket() const { return next_ticket_ - 1; }

 private:
  struct Kept {
    Message message;
    std::vector<Header> headers;
  };
  void take(std::vector<Outcome>& outcomes);

  std::deque<Kept> kept_;  // outlives the publisher
  std::unique_ptr<Publisher> publisher_;
  std::map<std::uint64_t, Outcome> outcomes_;
  std::uint64_t next_ticket_ = 1;
  std::size_t published_ = 0;
  std::size_t refused_ = 0;
  std::size_t repeated_ = 0;  // outcomes for a ticket that had one
};

}  // namespace outbox::publish::test
