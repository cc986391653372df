// Is Kafka there? Kept from acknowledgements, answers and errors, since librdkafka itself reports nothing for a
// message that merely waits (message.timeout.ms=0).
#pragma once

#include <librdkafka/rdkafka.h>

#include <optional>
#include <string>

#include "publisher.hpp"

namespace outbox::publish {

class HealthWatch {
 public:
  static constexpr std::chrono::seconds silence_limit{5};

  void unconfigured(std::string reason);
  // `text`: scrubbed, without counts. An error of one broker alone is only a hint; that all are down, or that we may not in, is trouble.
  void error(rd_kafka_resp_err_t code, const std::string& text, Clock::time_point now);
  void producer_failed(std::string text);

  void acknowledged(Clock::time_point now);
  void answered();  // a broker answered something else than a produce request
  // Called when messages are given to librdkafka that had none, and when it has none left.
  void waiting(bool any, Clock::time_point now);

  [[nodiscard]] bool configured() const { return state_ != Health::State::unconfigured; }
  [[nodiscard]] bool in_trouble() const { return !trouble_.empty(); }
  [[nodiscard]] Health get(Clock::time_point now) const;
  // When silence turns into trouble.
  [[nodiscard]] std::optional<Clock::time_point> silence_deadline(Clock::time_point now) const;

 private:
  Health::State state_ = Health::State::ok;
  std::string trouble_;
  std::string hint_;  // last error of a single broker
  bool all_down_ = false;
  bool refused_entry_ =
      false;  // trouble_ is about authentication or certificates: more telling than "all brokers are down"
  Clock::time_point refused_at_{};
  std::optional<Clock::time_point> waiting_since_;  // or the last acknowledgement, when that was later
};

}  // namespace outbox::publish
