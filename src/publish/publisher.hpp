// publish/: gets records as plain values, hands on one outcome a record. Knows librdkafka, knows no PostgreSQL.
//
// Whatever happens between submit() and the outcome is decided here: looking a topic up before its first produce, reading
// its limits, the batching and the one-at-a-time producer, resending a refused batch record by record, replacing a
// producer after a fatal error. A record leaves through exactly one Outcome, or not at all while the broker is away.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace outbox::publish {

using Clock = std::chrono::steady_clock;

struct Header {
  std::string_view name;                  // a NUL follows it: librdkafka takes names as C strings
  std::optional<std::string_view> value;  // nullopt: a null header
};

// All views stay valid and unchanged until the record's outcome was taken from poll(), or the Publisher is destroyed.
struct Record {
  std::uint64_t ticket = 0;  // the caller's; rises with every submit(), so ticket order is publishing order
  std::string_view topic;
  std::optional<std::string_view> key;      // nullopt: no key; empty is a key
  std::optional<std::string_view> payload;  // nullopt: a tombstone
  std::span<const Header> headers;
  std::int64_t timestamp_ms = 0;
};

struct Outcome {
  enum class Kind : std::uint8_t {
    published,  // acknowledged with acks=all; offset -1: published, offset unknown
    refused     // Kafka refused this record alone, or its topic is unknown or forbidden: a dead letter
  };
  std::uint64_t ticket = 0;
  Kind kind = Kind::published;
  std::int32_t partition = -1;
  std::int64_t offset = -1;
  int error_code = 0;  // Kafka's, or librdkafka's (negative)
  std::string reason;  // in words, with topic and limit where there is one; empty when published
};

// What the worker shows in outbox.workers and outbox.lanes.
struct Health {
  enum class State : std::uint8_t { ok, backing_off, unconfigured };
  State state = State::ok;
  std::string reason;  // never contains a secret
};

struct LogLine {
  int severity;  // syslog level as librdkafka gives it
  std::string text;
};

// A librdkafka property: name and value as in CREATE SERVER and CREATE USER MAPPING.
using Property = std::pair<std::string, std::string>;

struct Settings {
  std::vector<Property> properties;
  std::int64_t max_message_bytes = 1'000'000;  // outbox.max_message_bytes; raises librdkafka's own limit with it
  std::string client_id = "outbox";            // unless set as a property
};

// Owner: the worker process. Thread: the one that calls; librdkafka's threads never enter our code.
class Publisher {
 public:
  // Nothing is thrown for a bad configuration: health() is then `unconfigured`, submit() refuses to take anything.
  // All signals are blocked while librdkafka starts its threads.
  explicit Publisher(Settings settings);
  // Purges, waits at most about a second, destroys. Records without an outcome stay unpublished as far as known.
  ~Publisher();
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

  // False: the queue is full or the publisher is unconfigured; try again after the next poll(). Never blocks.
  bool submit(const Record& record);

  // Takes what has happened since the last call, appends the outcomes. Does not wait for the broker, but for looking up
  // a topic that is not known yet (bounded, and only while a broker is connected).
  void poll(std::vector<Outcome>& outcomes);

  // Readable when poll() has something to do. Drained by poll().
  [[nodiscard]] int wake_fd() const;
  // When poll() wants to be called at the latest although wake_fd() is silent.
  [[nodiscard]] std::optional<Clock::time_point> next_poll() const;

  [[nodiscard]] Health health() const;
  // librdkafka's own log since the last call, at most a bounded number of lines, without secrets.
  std::vector<LogLine> take_log();
  // Records submitted that have no outcome yet.
  [[nodiscard]] std::size_t outstanding() const;
  // Frees what is only kept for the next records.
  void give_back_memory();

  // Ends: takes the reports at hand for at most `limit`, purges the rest. Outcomes of what was acknowledged are appended.
  void close(std::chrono::milliseconds limit, std::vector<Outcome>& outcomes);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace outbox::publish
