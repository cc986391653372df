// When the next snapshot is taken. A commit is read at once, unless so many come that waiting for some more pays: a
// snapshot and a request to Kafka for each of thousands a second would take the processor from those who commit.
// No server header.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>

namespace outbox::worker {

class Pace {
 public:
  using Clock = std::chrono::steady_clock;
  // Messages a second from which commits wait for each other, and from which they do so as long as they may.
  static constexpr double many = 1'200;
  static constexpr double very_many = 3'000;
  static constexpr double enough = 500;  // messages are worth a request of their own
  static constexpr std::chrono::duration<double> longest_wait{0.010};
  static constexpr std::chrono::duration<double> observed{0.05};

  // At `now` a snapshot was read in which there were so many new messages.
  void read(std::size_t messages, Clock::time_point now) {
    last_ = now;
    messages_ += static_cast<double>(messages);
    const std::chrono::duration<double> since = now - began_;
    if (since < observed) return;
    a_second_ = messages_ / since.count();
    messages_ = 0;
    began_ = now;
  }

  // May be in the past.
  [[nodiscard]] Clock::time_point next() const {
    if (a_second_ <= many) return last_;
    const auto wait = longest_wait * std::min((a_second_ - many) / (very_many - many), 1.0);
    return last_ + std::chrono::duration_cast<Clock::duration>(
                       std::min(wait, std::chrono::duration<double>(enough / a_second_)));
  }

 private:
  Clock::time_point last_{};
  Clock::time_point began_{};
  double messages_ = 0;  // since began_
  double a_second_ = 0;
};

}  // namespace outbox::worker
