// librdkafka's log on its way to the server log: without secrets, and never more than a bounded number of lines.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "publisher.hpp"

namespace outbox::publish {

// Replaces every secret of the configuration, wherever it appears in a text.
class Scrubber {
 public:
  explicit Scrubber(const std::vector<Property>& properties);
  [[nodiscard]] std::string operator()(std::string_view text) const;

 private:
  std::vector<std::string> secrets_;  // longest first: one may contain another
};

class Log {
 public:
  // A warning or error that was there already is left out for `quiet`: a retry is logged when it starts.
  void add(int severity, std::string text, Clock::time_point now);
  // The lines since the last call; says how many more there were.
  std::vector<LogLine> take();

 private:
  static constexpr std::size_t lines_per_window = 30;
  static constexpr std::chrono::seconds window{10};
  static constexpr std::chrono::seconds quiet{300};
  static constexpr std::size_t most_remembered = 32;

  struct Said {
    std::string text;
    Clock::time_point when;
  };
  bool said_already(int severity, std::string_view text, Clock::time_point now);

  std::vector<LogLine> lines_;
  std::vector<Said> said_;
  Clock::time_point window_start_{};
  std::size_t in_window_ = 0;
  std::size_t suppressed_ = 0;
};

}  // namespace outbox::publish
