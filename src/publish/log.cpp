// Gets lines as librdkafka writes them, hands on those that fit the rate, scrubbed by the caller beforehand.
#include "log.hpp"

#include <algorithm>

#include "failure.hpp"
#include "options.hpp"

namespace outbox::publish {

namespace {

void replace_all(std::string& text, std::string_view what) {
  constexpr std::string_view mask = "***";
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + mask.size())) {
    text.replace(at, what.size(), mask);
  }
}

}  // namespace

Scrubber::Scrubber(const std::vector<Property>& properties) {
  for (const auto& [name, value] : properties) {
    if (is_secret(name) && !value.empty()) secrets_.push_back(value);
  }
  std::ranges::sort(secrets_, [](const auto& a, const auto& b) { return a.size() > b.size(); });
}

std::string Scrubber::operator()(std::string_view text) const {
  std::string clean(text);
  for (const auto& secret : secrets_) replace_all(clean, secret);
  return clean;
}

bool Log::said_already(int severity, std::string_view text, Clock::time_point now) {
  constexpr int warning = 4;
  if (severity > warning) return false;
  text = without_counts(text);
  const auto found = std::ranges::find(said_, text, &Said::text);
  if (found != said_.end() && now - found->when < quiet) return true;
  if (found != said_.end()) said_.erase(found);
  if (said_.size() == most_remembered) said_.erase(said_.begin());
  said_.push_back({std::string(text), now});
  return false;
}

void Log::add(int severity, std::string text, Clock::time_point now) {
  if (said_already(severity, text, now)) return;
  if (now - window_start_ >= window) {
    window_start_ = now;
    in_window_ = 0;
  }
  if (in_window_ >= lines_per_window || lines_.size() >= lines_per_window) {
    ++suppressed_;
    return;
  }
  ++in_window_;
  lines_.push_back({severity, std::move(text)});
}

std::vector<LogLine> Log::take() {
  // Said when lines flow again or on the next call without any, so that a flood is counted once.
  constexpr int notice = 5;
  if (suppressed_ > 0 && (in_window_ < lines_per_window || Clock::now() - window_start_ >= window)) {
    lines_.push_back({notice, std::to_string(suppressed_) + " more lines of librdkafka's log were suppressed"});
    suppressed_ = 0;
  }
  return std::exchange(lines_, {});
}

}  // namespace outbox::publish
