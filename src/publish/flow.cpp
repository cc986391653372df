// Gets the waiting records of a topic, gives them to librdkafka in ticket order, as many as the topic's state allows.
#include <algorithm>
#include <ctime>
#include <utility>

#include "impl.hpp"

namespace outbox::publish {

namespace {

// A few milliseconds coarse, for a fifth of the price: it is read for every record of a topic with time limits.
std::int64_t wall_clock_ms() {
  timespec time{};
  clock_gettime(CLOCK_REALTIME_COARSE, &time);
  return static_cast<std::int64_t>(time.tv_sec) * 1000 + time.tv_nsec / 1'000'000;
}

}  // namespace

bool Publisher::Impl::submit_open(Topic& topic, const Record& record) {
  const Route route = topic.route(record.ticket);
  if (!producers[0] || !topic.may_send(route)) {
    hold(topic, record);
    return true;
  }
  if (auto refused = refusal(topic, record)) {
    if (must_read_limits(topic)) {
      hold(topic, record);
      wake();
      return true;
    }
    refuse(slots.take(record, &topic), *refused);
    wake();
    return true;
  }
  const SlotId id = slots.take(record, &topic);
  const auto error = give(topic, id, route);
  if (error == RD_KAFKA_RESP_ERR_NO_ERROR) return true;
  if (classify(error) == Failure::backpressure) {
    slots.release(id);
    return false;
  }
  not_acknowledged(id, error, {}, true);
  wake();
  return true;
}

void Publisher::Impl::hold(Topic& topic, const Record& record) {
  topic.held.push_back(slots.take(record, &topic));
  mark_busy(topic);
}

void Publisher::Impl::pump(Topic& topic) {
  while (topic.state == Topic::State::open) {
    const bool past_alone = topic.held.empty() || slots[topic.held.front()].record.ticket > topic.alone_until;
    if (topic.alone_until && past_alone && topic.in_flight == 0) topic.alone_until.reset();
    if (topic.held.empty()) return;
    const SlotId id = topic.held.front();
    const Record& record = slots[id].record;
    const Route route = topic.route(record.ticket);
    if (!topic.may_send(route)) return;
    if (auto refused = refusal(topic, record)) {
      if (must_read_limits(topic)) return;
      topic.held.pop_front();
      refuse(id, *refused);
      continue;
    }
    const auto error = give(topic, id, route);
    if (classify(error) == Failure::backpressure) return;
    topic.held.pop_front();
    if (error != RD_KAFKA_RESP_ERR_NO_ERROR) not_acknowledged(id, error, {}, true);
  }
}

rd_kafka_resp_err_t Publisher::Impl::give(Topic& topic, SlotId id, Route route) {
  Producer* by = producer(route);
  if (by == nullptr) return RD_KAFKA_RESP_ERR__TRANSPORT;
  auto& handle = topic.handles[static_cast<std::size_t>(route)];
  if (!handle) handle = by->topic(topic.name);
  if (!handle) return RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION;
  // As an integer, not an address: a slot moves when their number grows.
  const auto error = by->send(handle.get(), slots[id].record, reinterpret_cast<void*>(static_cast<std::uintptr_t>(id)));
  if (error != RD_KAFKA_RESP_ERR_NO_ERROR) return error;
  slots[id].where = Slot::Where::in_flight;
  topic.last_route = route;
  topic.used = true;
  ++topic.in_flight;
  if (in_flight++ == 0) health.waiting(true, Clock::now());
  return RD_KAFKA_RESP_ERR_NO_ERROR;
}

std::optional<Refusal> Publisher::Impl::refusal(const Topic& topic, const Record& record) const {
  const Limits& limits = topic.limits;
  const bool timed = limits.before_max_ms || limits.after_max_ms;
  return refuse_beforehand(record, limits, timed ? wall_clock_ms() : 0, compressed);
}

// A record is not given up for a limit that may have been raised since. True: the limits are being read anew.
bool Publisher::Impl::must_read_limits(Topic& topic) {
  const auto now = Clock::now();
  if (topic.limits_read && now - *topic.limits_read < Topic::limits_trusted) return false;
  topic.limits_wanted = true;
  read_limits_then_open(topic, now);
  return topic.state == Topic::State::reading_limits;
}

void Publisher::Impl::refuse(SlotId id, const Refusal& refusal) {
  ready.push_back({slots[id].record.ticket, Outcome::Kind::refused, -1, -1, refusal.error_code, scrub(refusal.reason)});
  slots.release(id);
}

// Nothing of the topic is with librdkafka any more: what failed stands in front again, and a look decides how to go on.
void Publisher::Impl::drained(Topic& topic, Clock::time_point now) {
  std::ranges::sort(topic.failed, {}, [this](SlotId id) { return slots[id].record.ticket; });
  topic.held.insert(topic.held.begin(), topic.failed.begin(), topic.failed.end());
  topic.failed.clear();
  const bool topic_error = topic.error != RD_KAFKA_RESP_ERR_NO_ERROR;
  if (topic_error && topic.failing_since && now - *topic.failing_since >= Topic::grace) {
    declare_absent(topic, now);
  } else if (!topic_error && topic.alone_until) {
    topic.limits_wanted = true;
    read_limits_then_open(topic, now);
  } else {
    topic.state = Topic::State::looking_up;
    topic.back_off(now);
  }
}

}  // namespace outbox::publish
