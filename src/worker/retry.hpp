// When something is tried again that others may stand in the way of: later and later; at once when something has changed.
// No server header.
#pragma once

#include <algorithm>
#include <chrono>

namespace outbox::worker {

class Retry {
 public:
  using Clock = std::chrono::steady_clock;
  Retry(std::chrono::milliseconds first, std::chrono::milliseconds longest)
      : first_(first), longest_(longest), pause_(first) {}

  void at_once() {
    pause_ = first_;
    at_ = {};
  }
  void later(Clock::time_point now = Clock::now()) {
    at_ = now + pause_;
    pause_ = std::min(pause_ * 2, longest_);
  }
  [[nodiscard]] bool due(Clock::time_point now = Clock::now()) const { return at_ <= now; }
  [[nodiscard]] Clock::time_point at() const { return at_; }

 private:
  std::chrono::milliseconds first_;
  std::chrono::milliseconds longest_;
  std::chrono::milliseconds pause_;
  Clock::time_point at_{};
};

}  // namespace outbox::worker
