#include "health.hpp"

#include "failure.hpp"

namespace outbox::publish {

void HealthWatch::unconfigured(std::string reason) {
  state_ = Health::State::unconfigured;
  trouble_ = std::move(reason);
}

void HealthWatch::error(rd_kafka_resp_err_t code, const std::string& text, Clock::time_point now) {
  // Behind a refused authentication librdkafka also says that all brokers are down, and goes on trying.
  constexpr std::chrono::seconds refusal_lasts{40};  // it repeats the same error every 30 s
  if (classify(code) == Failure::configuration) {
    trouble_ =
        (code == RD_KAFKA_RESP_ERR__SSL ? "no TLS connection to Kafka: " : "Kafka does not let this client in: ") +
        text;
    refused_entry_ = true;
    refused_at_ = now;
    return;
  }
  if (code != RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN) {
    hint_ = text;
    return;
  }
  if (refused_entry_ && now - refused_at_ < refusal_lasts) return;
  refused_entry_ = false;
  all_down_ = true;
  trouble_ = "all brokers are down";
}

void HealthWatch::producer_failed(std::string text) {
  all_down_ = false;
  trouble_ = "the producer failed and is replaced: " + std::move(text);
}

void HealthWatch::acknowledged(Clock::time_point now) {
  answered();
  if (waiting_since_) waiting_since_ = now;
}

void HealthWatch::answered() {
  if (!configured()) return;
  trouble_.clear();
  hint_.clear();
  all_down_ = false;
  refused_entry_ = false;
}

void HealthWatch::waiting(bool any, Clock::time_point now) {
  if (!any) {
    waiting_since_.reset();
  } else if (!waiting_since_) {
    waiting_since_ = now;
  }
}

Health HealthWatch::get(Clock::time_point now) const {
  if (!configured()) return {state_, trouble_};
  if (in_trouble())
    return {Health::State::backing_off, all_down_ && !hint_.empty() ? trouble_ + ": " + hint_ : trouble_};
  if (!waiting_since_ || now - *waiting_since_ < silence_limit) return {};
  std::string reason = "Kafka has acknowledged nothing for more than " + std::to_string(silence_limit.count()) + " s";
  if (!hint_.empty()) reason += ": " + hint_;
  return {Health::State::backing_off, std::move(reason)};
}

std::optional<Clock::time_point> HealthWatch::silence_deadline(Clock::time_point now) const {
  if (!waiting_since_ || in_trouble()) return std::nullopt;
  const auto deadline = *waiting_since_ + silence_limit;
  return deadline > now ? std::optional(deadline) : std::nullopt;
}

}  // namespace outbox::publish
