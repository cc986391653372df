// The state of one topic: may its records be produced, which wait, and by which producer do they go.
//
//             submit             lookup: it exists                    limits known, or 5 s
//   unknown ─────────► looking_up ─────────────────► reading_limits ─────────────────────► open
//                        ▲  │  ▲                        ▲                                  │ a report that is not
//              a record, │  │  └──────── topic error ───┤◄────────── draining ◄────────────┘ an acknowledgement
//         at most 2 a s  │  ▼ still not after 5 s       └─ refused batch, or a record that a limit forbids
//                       absent: what waited is refused
//
// Kafka refuses batches and librdkafka goes on behind one (design: "Kafka, exactly"). So after a report that is no
// acknowledgement nothing more of the topic is sent until all of it was reported (draining); what failed goes back in
// front of what waited, by ticket, and up to `alone_until` each record is sent alone and awaited.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "config.hpp"
#include "handles.hpp"
#include "limits.hpp"
#include "slots.hpp"

namespace outbox::publish {

struct Topic {
  enum class State : std::uint8_t { unknown, looking_up, reading_limits, open, draining, absent };

  static constexpr std::chrono::seconds grace{5};                 // a topic being created, a right being granted
  static constexpr std::chrono::milliseconds recheck_after{500};  // between two looks at an absent topic
  static constexpr std::chrono::seconds limits_trusted{1};  // how old a limit may be for which a record is refused
  static constexpr std::chrono::seconds limits_wait{5};
  static constexpr std::uint32_t unproven_window = 1000;  // until its first acknowledgement

  explicit Topic(std::string topic_name) : name(std::move(topic_name)) {}

  std::string name;
  State state = State::unknown;
  bool busy = false;  // on the publisher's list of topics that need attention

  std::array<TopicHandle, 2> handles;  // by Route
  Route last_route = Route::batches;
  std::uint32_t in_flight = 0;  // given to librdkafka, not reported
  bool acknowledged = false;

  std::deque<SlotId> held;     // by ticket
  std::vector<SlotId> failed;  // reported without acknowledgement, to be sent again
  std::optional<std::uint64_t> alone_until;

  rd_kafka_resp_err_t error = RD_KAFKA_RESP_ERR_NO_ERROR;  // why it is absent, or may be
  std::optional<Clock::time_point> failing_since;          // first topic error without an acknowledgement since
  Clock::time_point next_try{};
  std::uint32_t tries = 0;

  Limits limits;
  bool small = false;          // a full batch could exceed the topic's limit
  bool limits_wanted = false;  // to be asked for
  bool limits_asked = false;   // in the request under way
  std::optional<Clock::time_point> limits_read;
  Clock::time_point limits_deadline{};
  bool used = false;  // since the limits were last refreshed

  // May one more be given to librdkafka now, by this route?
  [[nodiscard]] bool may_send(Route route) const;
  [[nodiscard]] Route route(std::uint64_t ticket) const;
  // Doubles with each try: 50 ms to 1 s.
  void back_off(Clock::time_point now);
  // When this topic wants attention although nothing happens.
  [[nodiscard]] std::optional<Clock::time_point> deadline() const;
};

class Topics {
 public:
  Topic& get(std::string_view name);
  Topic* find(std::string_view name);
  [[nodiscard]] std::size_t size() const { return topics_.size(); }
  template <class F>
  void forget_if(F&& f) {
    last_ = nullptr;
    std::erase_if(topics_, [&](const auto& entry) { return f(*entry.second); });
  }
  template <class F>
  void for_each(F&& f) {
    for (auto& [name, topic] : topics_) f(*topic);
  }

 private:
  // Keys are views of the topics' own names.
  std::unordered_map<std::string_view, std::unique_ptr<Topic>> topics_;
  Topic* last_ = nullptr;  // records come in runs of one topic
};

}  // namespace outbox::publish
