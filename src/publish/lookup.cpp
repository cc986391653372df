// Gets topics that are not known to be there, asks Kafka, and opens them with their limits or declares them absent.
//
// librdkafka would report messages of an unknown topic after half a minute, all together, and keep the queue full for
// everybody meanwhile. It has no asynchronous call for this question before 2.3, so it is asked with a short timeout;
// while no broker is connected only one attempt is made in a poll.
#include <algorithm>
#include <utility>

#include "impl.hpp"

namespace outbox::publish {

using std::chrono::milliseconds;

namespace {

constexpr milliseconds usual_timeout{100};
constexpr milliseconds patient_timeout{1000};  // for brokers that are connected but far away
constexpr milliseconds between_attempts{300};  // while nobody answers
constexpr milliseconds limits_timeout{5000};
constexpr std::chrono::seconds limits_age{60};

}  // namespace

void Publisher::Impl::start_lookup(Topic& topic, Clock::time_point at) {
  topic.state = Topic::State::looking_up;
  topic.next_try = at;
  mark_busy(topic);
  wake();
}

// False: nobody answered.
bool Publisher::Impl::look_up(Topic& topic) {
  auto& handle = topic.handles[static_cast<std::size_t>(Route::batches)];
  if (!handle) handle = producers[0]->topic(topic.name);
  const auto before = Clock::now();
  if (!handle) {
    topic.error = RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION;
    declare_absent(topic, before);
    return true;
  }
  auto answer = producers[0]->look_up(handle.get(), std::min(lookup_timeout, lookup_budget));
  const auto now = Clock::now();
  if (lookup_answered(answer, before, now)) {
    looked_up(topic, answer.topic, now);
    return true;
  }
  // Not the topic's fault: its grace begins again when somebody answers.
  topic.failing_since.reset();
  topic.back_off(now);
  return false;
}

bool Publisher::Impl::lookup_answered(Producer::Lookup& answer, Clock::time_point before, Clock::time_point now) {
  lookup_budget -= std::chrono::ceil<milliseconds>(now - before);
  last_lookup = now;
  if (answered(answer.request, now)) {
    lookup_timeout = usual_timeout;
    limits_readable = limits_supported && answer.controller_known;
    return true;
  }
  if (answer.request == RD_KAFKA_RESP_ERR__TIMED_OUT) lookup_timeout = std::min(lookup_timeout * 2, patient_timeout);
  next_lookup = now + std::max(between_attempts, 3 * lookup_timeout);
  lookup_budget = milliseconds(0);
  return false;
}

// A database may have a topic a tenant. One request asks for all that are due, so that many topics do not wait in line. It
// names every topic that has a handle, so only a set of limited size has one; the others follow when these have a verdict.
void Publisher::Impl::look_up_together(Clock::time_point now) {
  constexpr std::ptrdiff_t few = 3;
  constexpr std::size_t most = 400;
  const auto is_looking = [](const Topic* topic) { return topic->state == Topic::State::looking_up; };
  const auto has_handle = [](const Topic* topic) {
    return static_cast<bool>(topic->handles[static_cast<std::size_t>(Route::batches)]);
  };
  many_lookups = std::ranges::count_if(busy, is_looking) > few;
  if (!many_lookups || now < next_lookup || lookup_budget.count() <= 0) return;
  auto room =
      most - std::min<std::size_t>(most, static_cast<std::size_t>(std::ranges::count_if(
                                             busy, [&](const Topic* t) { return is_looking(t) && has_handle(t); })));
  std::vector<Topic*> due;
  for (Topic* topic : busy) {
    if (!is_looking(topic) || now < topic->next_try) continue;
    if (!has_handle(topic) && room > 0) {
      topic->handles[static_cast<std::size_t>(Route::batches)] = producers[0]->topic(topic->name);
      --room;
    }
    if (has_handle(topic)) due.push_back(topic);
  }
  if (due.empty()) return;
  const auto before = Clock::now();
  auto answer = producers[0]->look_up(nullptr, std::max(lookup_timeout, lookup_budget));
  const auto after = Clock::now();
  const bool good = lookup_answered(answer, before, after);
  for (Topic* topic : due) {
    const auto found = answer.topics.find(topic->name);
    if (good && found != answer.topics.end()) {
      looked_up(*topic, found->second, after);
    } else {
      // A slow answer is no outage; only when nobody is there does a topic's grace begin again.
      if (answer.request == RD_KAFKA_RESP_ERR__TRANSPORT) topic->failing_since.reset();
      topic->back_off(after);
    }
  }
}

// Newer versions of librdkafka do not say that all brokers are down while they know only those of bootstrap.servers.
bool Publisher::Impl::answered(rd_kafka_resp_err_t request, Clock::time_point now) {
  constexpr int enough = 3;
  if (request == RD_KAFKA_RESP_ERR_NO_ERROR) {
    unanswered = 0;
    health.answered();
    return true;
  }
  ++unanswered;
  const bool nobody_connected = request == RD_KAFKA_RESP_ERR__TRANSPORT;
  if (nobody_connected && unanswered >= enough) health.error(RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN, {}, now);
  return false;
}

void Publisher::Impl::looked_up(Topic& topic, rd_kafka_resp_err_t error, Clock::time_point now) {
  const Failure failure = classify(error);
  if (failure == Failure::none) {
    topic.error = RD_KAFKA_RESP_ERR_NO_ERROR;
    return read_limits_then_open(topic, now);
  }
  if (failure != Failure::topic) return topic.back_off(now);
  topic.error = error;
  if (!topic.failing_since) topic.failing_since = now;
  const bool for_good = error == RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION;
  if (for_good || now - *topic.failing_since >= Topic::grace) return declare_absent(topic, now);
  topic.back_off(now);
}

void Publisher::Impl::declare_absent(Topic& topic, Clock::time_point now) {
  topic.state = Topic::State::absent;
  ++absent;
  topic.next_try = now + Topic::recheck_after;
  topic.alone_until.reset();
  topic.acknowledged = false;
  topic.limits_read.reset();
  for (const SlotId id : std::exchange(topic.held, {}))
    refuse(id, {topic.error, topic_reason(topic.name, topic.error)});
  // The producer goes on asking for the topic, see forget_absent().
  for (auto& handle : topic.handles) handle.reset();
}

void Publisher::Impl::read_limits_then_open(Topic& topic, Clock::time_point now) {
  const bool fresh = topic.limits_read && now - *topic.limits_read < limits_age && !topic.limits_wanted;
  if (!limits_readable || fresh) {
    topic.limits_wanted = false;
    topic.state = Topic::State::open;
    return;
  }
  topic.limits_wanted = true;
  limits_wanted = true;
  topic.state = Topic::State::reading_limits;
  topic.limits_deadline = now + Topic::limits_wait;
}

void Publisher::Impl::request_limits() {
  constexpr std::size_t most = 100;
  if (!limits_wanted || limits_under_way || !limits_readable || !producers[0]) return;
  std::vector<std::string> names;
  limits_wanted = false;
  topics.for_each([&](Topic& topic) {
    if (!topic.limits_wanted) return;
    if (names.size() == most) {
      limits_wanted = true;
      return;
    }
    topic.limits_wanted = false;
    topic.limits_asked = true;
    names.push_back(topic.name);
  });
  if (names.empty()) return;
  limits_under_way = true;
  producers[0]->request_limits(names, limits_timeout);
}

// An operator may raise or lower a limit at any time; a topic in use hears of it within a minute.
void Publisher::Impl::refresh_limits(Clock::time_point now) {
  if (!limits_readable || now < next_refresh) return;
  next_refresh = now + limits_age;
  topics.for_each([&](Topic& topic) {
    if (!std::exchange(topic.used, false) || topic.state != Topic::State::open) return;
    topic.limits_wanted = true;
    limits_wanted = true;
  });
}

// With nothing in flight no acknowledgement will ever say that the brokers are back.
void Publisher::Impl::probe_brokers(Clock::time_point now) {
  constexpr std::chrono::seconds interval{1};
  if (!health.in_trouble() || in_flight > 0 || now < next_probe) return;
  const auto answer = producers[0]->look_up(nullptr, milliseconds(50));
  const auto after = Clock::now();
  answered(answer.request, after);
  next_probe = after + interval;
}

}  // namespace outbox::publish
