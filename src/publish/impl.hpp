// The inside of Publisher. One thread, no locks: librdkafka's threads only fill queues and write into the wake pipe.
//
//   publisher.cpp  submit, poll: what happens in which order
//   flow.cpp       from a topic's waiting records into librdkafka
//   report.cpp     what comes back: reports, errors, limits, log
//   lookup.cpp     before the first produce and after a topic error: does the topic exist, what does it accept
//   renew.cpp      producers: start, replace after a fatal error, end
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config.hpp"
#include "failure.hpp"
#include "handles.hpp"
#include "health.hpp"
#include "log.hpp"
#include "producer.hpp"
#include "publisher.hpp"
#include "slots.hpp"
#include "topic.hpp"

namespace outbox::publish {

struct Publisher::Impl {
  explicit Impl(Settings given);

  // publisher.cpp
  bool submit(const Record& record);
  void poll(std::vector<Outcome>& outcomes);
  [[nodiscard]] std::optional<Clock::time_point> next_poll() const;
  void drain_wake_pipe() const;
  void wake() const;
  void tend_topics(Clock::time_point now);
  void tend_topic(Topic& topic, Clock::time_point now);
  void hand_over(std::vector<Outcome>& outcomes);
  void mark_busy(Topic& topic);

  // flow.cpp
  bool submit_open(Topic& topic, const Record& record);
  void hold(Topic& topic, const Record& record);
  void pump(Topic& topic);
  rd_kafka_resp_err_t give(Topic& topic, SlotId id, Route route);
  [[nodiscard]] std::optional<Refusal> refusal(const Topic& topic, const Record& record) const;
  void refuse(SlotId id, const Refusal& refusal);
  bool must_read_limits(Topic& topic);
  void drained(Topic& topic, Clock::time_point now);

  // report.cpp
  bool serve_events();
  void on_event(const EventHandle& event, Route route);
  void on_reports(const EventHandle& event, Route route);
  void acknowledged(SlotId id, const rd_kafka_message_t& message);
  void not_acknowledged(SlotId id, rd_kafka_resp_err_t error, std::string_view detail, bool alone);
  void on_error(const EventHandle& event, Route route);
  void on_limits(const EventHandle& event);
  void on_log(const EventHandle& event);

  // lookup.cpp
  void start_lookup(Topic& topic, Clock::time_point at);
  bool look_up(Topic& topic);
  void look_up_together(Clock::time_point now);
  bool lookup_answered(Producer::Lookup& answer, Clock::time_point before, Clock::time_point now);
  bool answered(rd_kafka_resp_err_t request, Clock::time_point now);
  void looked_up(Topic& topic, rd_kafka_resp_err_t error, Clock::time_point now);
  void declare_absent(Topic& topic, Clock::time_point now);
  void read_limits_then_open(Topic& topic, Clock::time_point now);
  void request_limits();
  void refresh_limits(Clock::time_point now);
  void probe_brokers(Clock::time_point now);

  // renew.cpp
  bool start(Clock::time_point now);
  Producer* producer(Route route);
  void renew_if_failed(Clock::time_point now);
  void collect(Clock::time_point deadline);
  void settle(std::chrono::milliseconds limit);
  void end_producers();
  void forget_absent(Clock::time_point now);
  [[nodiscard]] std::optional<Clock::time_point> forget_at() const;
  void close(std::chrono::milliseconds limit);

  Settings settings;
  Scrubber scrub;
  Log log;
  HealthWatch health;

  // Before the producers: their threads write into the pipe until they are destroyed.
  FileDescriptor wake_read;
  FileDescriptor wake_write;

  Slots slots;
  std::array<std::unique_ptr<Producer>, 2> producers;  // by Route; `alone` is made when it is needed
  Topics topics;                                       // after the producers: topic handles go first
  std::vector<Topic*> busy;
  std::vector<Outcome> ready;
  std::size_t in_flight = 0;

  std::size_t queue_messages = 0;
  std::int64_t batch_bytes = 0;
  bool compressed = false;
  std::string mechanism;

  bool closed = false;
  bool more_events = false;

  std::string renew_reason;  // not empty: the producers are to be replaced
  Clock::time_point started_at{};
  Clock::time_point start_after{};
  std::uint32_t renewals = 0;
  std::size_t absent = 0;  // topics that these producers were asked for and that do not exist

  std::chrono::milliseconds lookup_timeout{100};
  std::chrono::milliseconds lookup_budget{0};  // what is left of this poll's
  Clock::time_point next_lookup{};
  Clock::time_point last_lookup{};
  bool many_lookups = false;  // more topics wait to be looked up than are asked for singly
  int unanswered = 0;         // questions without an answer since the last one with
  Clock::time_point next_probe{};

  bool limits_supported = true;
  bool limits_readable = true;  // not when the brokers lack DescribeConfigs or have no controller just now
  bool limits_wanted = false;
  bool limits_under_way = false;
  Clock::time_point next_refresh{};
};

}  // namespace outbox::publish
