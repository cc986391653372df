#include "topic.hpp"

#include <algorithm>

namespace outbox::publish {

bool Topic::may_send(Route route) const {
  if (state != State::open) return false;
  if (route != last_route && in_flight > 0) return false;  // two producers do not keep an order between them
  if (alone_until || failing_since) return in_flight == 0;
  return acknowledged || in_flight < unproven_window;
}

Route Topic::route(std::uint64_t ticket) const {
  const bool alone = small || (alone_until && ticket <= *alone_until);
  return alone ? Route::alone : Route::batches;
}

void Topic::back_off(Clock::time_point now) {
  constexpr std::chrono::milliseconds first{50};
  constexpr std::uint32_t doublings = 4;
  next_try = now + first * (1U << std::min(tries, doublings));
  ++tries;
}

std::optional<Clock::time_point> Topic::deadline() const {
  switch (state) {
    case State::looking_up:
      return next_try;
    case State::reading_limits:
      return limits_deadline;
    default:
      return std::nullopt;
  }
}

Topic& Topics::get(std::string_view name) {
  if (last_ != nullptr && last_->name == name) return *last_;
  auto found = topics_.find(name);
  if (found == topics_.end()) {
    auto topic = std::make_unique<Topic>(std::string(name));
    const std::string_view key = topic->name;
    found = topics_.emplace(key, std::move(topic)).first;
  }
  last_ = found->second.get();
  return *last_;
}

Topic* Topics::find(std::string_view name) {
  const auto found = topics_.find(name);
  return found == topics_.end() ? nullptr : found->second.get();
}

}  // namespace outbox::publish
