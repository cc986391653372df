// Producers begin and end here. After a fatal error of librdkafka: what was reported counts, the rest goes back to its
// topics and is sent again by a new producer, in ticket order.
#include <algorithm>
#include <utility>

#include "impl.hpp"

namespace outbox::publish {

using std::chrono::milliseconds;

bool Publisher::Impl::start(Clock::time_point now) {
  if (now < start_after) return false;
  Config config = make_config(settings, Route::batches);
  std::string error = config.error;
  if (config.handle) {
    queue_messages = config.queue_messages;
    batch_bytes = config.batch_bytes;
    compressed = config.compressed;
    mechanism = config.mechanism;
    producers[0] = Producer::create(std::move(config), wake_write.get(), error);
  }
  if (!producers[0] && renewals == 0) {
    health.unconfigured(scrub(error));
    return false;
  }
  if (!producers[0]) {  // the configuration was good before; threads or memory may be short just now
    health.producer_failed(scrub(error));
    start_after = now + std::chrono::seconds(5);
    return false;
  }
  started_at = now;
  next_refresh = now + std::chrono::minutes(1);
  return true;
}

Producer* Publisher::Impl::producer(Route route) {
  auto& by = producers[static_cast<std::size_t>(route)];
  if (by || route == Route::batches || !producers[0]) return by.get();
  Config config = make_config(settings, route);
  if (!config.handle) return nullptr;
  std::string error;
  by = Producer::create(std::move(config), wake_write.get(), error);
  return by.get();
}

void Publisher::Impl::renew_if_failed(Clock::time_point now) {
  constexpr std::chrono::seconds long_enough{60};
  constexpr milliseconds first{200};
  constexpr std::uint32_t doublings = 7;
  constexpr int notice = 5;
  if (renew_reason.empty() || !producers[0]) return;
  const std::string reason = std::exchange(renew_reason, {});
  log.add(notice, "the producer is replaced after a fatal error: " + reason, now);
  settle(std::chrono::seconds(1));  // what is on its way and stored would be sent twice
  end_producers();
  renew_reason.clear();
  if (now - started_at >= long_enough) renewals = 0;
  start_after = renewals == 0 ? now : now + first * (1U << std::min(renewals, doublings));
  ++renewals;
  health.producer_failed(reason);
}

// librdkafka asks every second for each topic that it was ever asked for and that does not exist, compares each of them with
// each, and a broker that creates topics may do so long after. Only a new producer has forgotten them.
void Publisher::Impl::forget_absent(Clock::time_point now) {
  constexpr int info = 6;
  constexpr std::size_t many = 1000;
  const auto due = forget_at();
  if (!due || now < *due) return;
  log.add(info, "the producer is replaced: " + std::to_string(absent) + " topics do not exist", now);
  settle(std::chrono::seconds(1));
  end_producers();
  renewals = std::max<std::uint32_t>(renewals, 1);  // the configuration is good
  if (topics.size() > many)
    topics.forget_if([](const Topic& topic) {
      return topic.state == Topic::State::absent && !topic.busy && topic.held.empty() && topic.failed.empty();
    });
}

// Not while topics are looked up. Where something is on its way, only when there are many.
std::optional<Clock::time_point> Publisher::Impl::forget_at() const {
  constexpr std::chrono::seconds pause{10};
  constexpr std::size_t many = 200;
  if (absent == 0 || !producers[0] || !busy.empty() || (in_flight > 0 && absent < many)) return std::nullopt;
  return started_at + pause;
}

// Takes reports until there is nothing more to be reported.
void Publisher::Impl::collect(Clock::time_point deadline) {
  constexpr milliseconds turn{10};
  while (in_flight > 0 && Clock::now() < deadline) {
    for (const Route route : {Route::batches, Route::alone}) {
      auto& by = producers[static_cast<std::size_t>(route)];
      if (!by) continue;
      if (const EventHandle event = by->next_event(turn)) on_event(event, route);
    }
    serve_events();
  }
}

// Nothing more is sent. Reports of what is on its way are awaited for at most `limit`; then it counts as not acknowledged.
void Publisher::Impl::settle(milliseconds limit) {
  constexpr milliseconds after_purge{300};
  for (auto& by : producers) {
    if (by) by->purge(limit.count() > 0 ? Producer::Purge::queued : Producer::Purge::everything);
  }
  collect(Clock::now() + limit);
  for (auto& by : producers) {
    if (by && in_flight > 0) by->purge(Producer::Purge::everything);
  }
  collect(Clock::now() + after_purge);
}

void Publisher::Impl::end_producers() {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const auto id = static_cast<SlotId>(i);
    if (slots[id].where != Slot::Where::in_flight) continue;
    not_acknowledged(id, RD_KAFKA_RESP_ERR__PURGE_INFLIGHT, {}, false);
  }
  in_flight = 0;
  topics.for_each([this](Topic& topic) {
    topic.in_flight = 0;
    if (std::exchange(topic.limits_asked, false)) topic.limits_wanted = limits_wanted = true;
    for (auto& handle : topic.handles) handle.reset();
  });
  limits_under_way = false;
  absent = 0;
  for (auto& by : producers) by.reset();
}

void Publisher::Impl::close(milliseconds limit) {
  closed = true;
  settle(limit);
  end_producers();
}

}  // namespace outbox::publish
