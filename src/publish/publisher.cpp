#include "publisher.hpp"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "impl.hpp"

namespace outbox::publish {

Publisher::Publisher(Settings settings) : impl_(std::make_unique<Impl>(std::move(settings))) {}

Publisher::~Publisher() {
  if (!impl_->closed) impl_->close(std::chrono::milliseconds(0));
}

bool Publisher::submit(const Record& record) { return impl_->submit(record); }

void Publisher::poll(std::vector<Outcome>& outcomes) { impl_->poll(outcomes); }

int Publisher::wake_fd() const { return impl_->wake_read.get(); }

std::optional<Clock::time_point> Publisher::next_poll() const { return impl_->next_poll(); }

Health Publisher::health() const { return impl_->health.get(Clock::now()); }

std::vector<LogLine> Publisher::take_log() { return impl_->log.take(); }

std::size_t Publisher::outstanding() const { return impl_->slots.used() + impl_->ready.size(); }

void Publisher::give_back_memory() {
  if (impl_->slots.used() == 0) impl_->slots = {};
  if (impl_->ready.empty()) impl_->ready = std::vector<Outcome>();
}

void Publisher::close(std::chrono::milliseconds limit, std::vector<Outcome>& outcomes) {
  if (!impl_->closed) impl_->close(limit);
  impl_->hand_over(outcomes);
}

Publisher::Impl::Impl(Settings given) : settings(std::move(given)), scrub(settings.properties) {
  std::array<int, 2> ends{-1, -1};
  if (::pipe2(ends.data(), O_NONBLOCK | O_CLOEXEC) != 0) {
    health.unconfigured("no pipe could be made for librdkafka's events");
    return;
  }
  wake_read = FileDescriptor(ends[0]);
  wake_write = FileDescriptor(ends[1]);
  start(Clock::now());
}

bool Publisher::Impl::submit(const Record& record) {
  if (closed || !health.configured() || slots.used() + ready.size() >= queue_messages) return false;
  Topic& topic = topics.get(record.topic);
  if (topic.state == Topic::State::open && topic.held.empty()) return submit_open(topic, record);
  const bool at_rest = topic.state == Topic::State::unknown || topic.state == Topic::State::absent;
  // Refused is final: no verdict may be older than its record, the topic may have been created just now.
  if (at_rest) start_lookup(topic, std::max(Clock::now(), topic.next_try));
  hold(topic, record);
  return true;
}

void Publisher::Impl::poll(std::vector<Outcome>& outcomes) {
  drain_wake_pipe();
  if (!closed && health.configured()) {
    more_events = serve_events();
    const auto now = Clock::now();
    renew_if_failed(now);
    if (producers[0] || start(now)) {
      refresh_limits(now);
      tend_topics(now);
      probe_brokers(now);
      forget_absent(now);
    }
    health.waiting(in_flight > 0 || unanswered > 0, now);
  }
  hand_over(outcomes);
}

void Publisher::Impl::tend_topics(Clock::time_point now) {
  constexpr std::chrono::milliseconds budget{250};
  lookup_budget = std::max(budget, lookup_timeout);
  look_up_together(now);
  // By index: the list may grow while a topic is tended.
  for (std::size_t i = 0; i < busy.size(); ++i) tend_topic(*busy[i], now);  // NOLINT(modernize-loop-convert)
  std::erase_if(busy, [](Topic* topic) {
    const bool at_rest = topic->state == Topic::State::absent || topic->state == Topic::State::unknown ||
                         (topic->state == Topic::State::open && topic->held.empty());
    if (at_rest) topic->busy = false;
    return at_rest;
  });
  request_limits();
}

void Publisher::Impl::tend_topic(Topic& topic, Clock::time_point now) {
  if (topic.state == Topic::State::draining && topic.in_flight == 0) drained(topic, now);
  if (topic.state == Topic::State::looking_up && !many_lookups && now >= topic.next_try && now >= next_lookup &&
      lookup_budget.count() > 0) {
    look_up(topic);
  }
  if (topic.state == Topic::State::reading_limits) {
    const bool answered = !topic.limits_wanted && !topic.limits_asked;
    if (answered || !limits_readable || now >= topic.limits_deadline) topic.state = Topic::State::open;
  }
  if (topic.state == Topic::State::open) pump(topic);
}

std::optional<Clock::time_point> Publisher::Impl::next_poll() const {
  if (more_events || !ready.empty()) return Clock::time_point{};
  if (closed || !health.configured()) return std::nullopt;
  if (!producers[0]) return start_after;
  std::optional<Clock::time_point> next;
  const auto earlier = [&](std::optional<Clock::time_point> time) {
    if (time && (!next || *time < *next)) next = time;
  };
  for (const Topic* topic : busy) {
    auto deadline = topic->deadline();
    if (deadline && topic->state == Topic::State::looking_up) {
      deadline = std::max(*deadline, next_lookup);
      // Those that wait for a place in the set are not asked for before somebody leaves it.
      if (many_lookups) deadline = std::max(*deadline, last_lookup + std::chrono::milliseconds(50));
    }
    earlier(deadline);
  }
  earlier(forget_at());
  if (limits_readable) earlier(next_refresh);
  if (health.in_trouble() && in_flight == 0) earlier(next_probe);
  earlier(health.silence_deadline(Clock::now()));
  return next;
}

void Publisher::Impl::drain_wake_pipe() const {
  std::array<char, 256> bytes{};
  while (::read(wake_read.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size())) {
  }
}

void Publisher::Impl::wake() const {
  // A full pipe is readable already.
  [[maybe_unused]] const auto written = ::write(wake_write.get(), "p", 1);
}

void Publisher::Impl::hand_over(std::vector<Outcome>& outcomes) {
  if (outcomes.empty()) {
    outcomes.swap(ready);
    return;
  }
  outcomes.insert(outcomes.end(), std::move_iterator(ready.begin()), std::move_iterator(ready.end()));
  ready.clear();
}

void Publisher::Impl::mark_busy(Topic& topic) {
  if (topic.busy) return;
  topic.busy = true;
  busy.push_back(&topic);
}

}  // namespace outbox::publish
