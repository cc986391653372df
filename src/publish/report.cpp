// Gets librdkafka's events, hands on outcomes and what else they say to those who keep it.
#include <algorithm>
#include <array>
#include <utility>

#include "impl.hpp"
#include "options.hpp"

namespace outbox::publish {

namespace {

std::string_view report_detail([[maybe_unused]] const rd_kafka_message_t& message) {
#if RD_KAFKA_VERSION >= 0x020400ff
  const char* text = rd_kafka_message_produce_errstr(&message);  // the broker's own words, where it has any
  if (text != nullptr) return text;
#endif
  return {};
}

}  // namespace

// True: there may be more.
bool Publisher::Impl::serve_events() {
  constexpr int most = 10'000;
  for (const Route route : {Route::batches, Route::alone}) {
    auto& by = producers[static_cast<std::size_t>(route)];
    for (int i = 0; by; ++i) {
      const EventHandle event = by->next_event();
      if (!event) break;
      if (i == most) return true;
      on_event(event, route);
    }
  }
  return false;
}

void Publisher::Impl::on_event(const EventHandle& event, Route route) {
  switch (rd_kafka_event_type(event.get())) {
    case RD_KAFKA_EVENT_DR:
      return on_reports(event, route);
    case RD_KAFKA_EVENT_ERROR:
      return on_error(event, route);
    case RD_KAFKA_EVENT_LOG:
      return on_log(event);
    case RD_KAFKA_EVENT_DESCRIBECONFIGS_RESULT:
      return on_limits(event);
    default:
      return;
  }
}

void Publisher::Impl::on_reports(const EventHandle& event, Route route) {
  bool any_good = false;
  std::array<const rd_kafka_message_t*, 256> messages{};
  while (const auto count = rd_kafka_event_message_array(event.get(), messages.data(), messages.size())) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto& message = *messages[i];
      const auto id = static_cast<SlotId>(reinterpret_cast<std::uintptr_t>(message._private));
      --slots[id].topic->in_flight;
      --in_flight;
      if (message.err == RD_KAFKA_RESP_ERR_NO_ERROR) {
        acknowledged(id, message);
        any_good = true;
      } else {
        not_acknowledged(id, message.err, report_detail(message), route == Route::alone);
      }
    }
  }
  if (any_good) health.acknowledged(Clock::now());
}

void Publisher::Impl::acknowledged(SlotId id, const rd_kafka_message_t& message) {
  Topic& topic = *slots[id].topic;
  topic.acknowledged = true;
  if (topic.failing_since) {
    topic.failing_since.reset();
    topic.error = RD_KAFKA_RESP_ERR_NO_ERROR;
  }
  topic.tries = 0;
  const std::int64_t offset = message.offset >= 0 ? message.offset : -1;  // stored, but librdkafka was not told where
  ready.push_back({slots[id].record.ticket, Outcome::Kind::published, message.partition, offset, 0, {}});
  slots.release(id);
}

// `alone`: the record was the whole batch, or librdkafka did not even take it; so an error is about this very record.
void Publisher::Impl::not_acknowledged(SlotId id, rd_kafka_resp_err_t error, std::string_view detail, bool alone) {
  Slot& slot = slots[id];
  Topic& topic = *slot.topic;
  const Failure failure = classify(error);
  if (failure == Failure::record && alone) return refuse(id, {error, record_reason(topic.name, error, detail)});
  slot.where = Slot::Where::held;
  topic.failed.push_back(id);
  topic.state = Topic::State::draining;
  mark_busy(topic);
  if (failure == Failure::record) {
    topic.alone_until = std::max(topic.alone_until.value_or(0), slot.record.ticket);
  } else if (failure == Failure::topic) {
    topic.error = error;
    if (!topic.failing_since) topic.failing_since = Clock::now();
  } else if (failure == Failure::producer && renew_reason.empty()) {
    renew_reason = rd_kafka_err2str(error);
  }
}

void Publisher::Impl::on_error(const EventHandle& event, Route route) {
  constexpr int warning = 4;
  const auto now = Clock::now();
  const auto code = rd_kafka_event_error(event.get());
  const char* given = rd_kafka_event_error_string(event.get());
  std::string text = scrub(without_counts(given != nullptr ? given : rd_kafka_err2str(code)));
  if (code == RD_KAFKA_RESP_ERR__SSL) text = tls_reason(text);
  if (classify(code) == Failure::configuration) {
    if (const auto warning_text = scram_warning(mechanism)) text += " (" + *warning_text + ")";
  }
  // A fatal error may come under its own code or under librdkafka's code for "fatal".
  const auto& by = producers[static_cast<std::size_t>(route)];
  const std::string fatal = by ? scrub(by->fatal_error()) : std::string();
  if (!fatal.empty() || classify(code) == Failure::producer) {
    renew_reason = fatal.empty() ? text : fatal;
    return;
  }
  // Of connections that fail librdkafka writes log lines itself; that all do is health's to say.
  if (classify(code) != Failure::broker && classify(code) != Failure::configuration) log.add(warning, text, now);
  health.error(code, text, now);
}

void Publisher::Impl::on_limits(const EventHandle& event) {
  const auto now = Clock::now();
  const auto error = rd_kafka_event_error(event.get());
  limits_under_way = false;
  if (error == RD_KAFKA_RESP_ERR__UNSUPPORTED_FEATURE || error == RD_KAFKA_RESP_ERR_UNSUPPORTED_VERSION)
    limits_supported = limits_readable = false;
  for (auto& [name, limits] : read_limits(event.get())) {
    Topic* topic = topics.find(name);
    if (topic == nullptr) continue;
    topic->limits = limits;
    topic->small = limits.max_message_bytes && *limits.max_message_bytes < batch_bytes;
  }
  topics.for_each([&](Topic& topic) {
    if (!std::exchange(topic.limits_asked, false)) return;
    topic.limits_read = now;
    topic.limits_wanted = topic.limits_wanted && limits_readable;
  });
}

void Publisher::Impl::on_log(const EventHandle& event) {
  const char* facility = nullptr;
  const char* text = nullptr;
  int severity = 0;
  if (rd_kafka_event_log(event.get(), &facility, &text, &severity) != 0) return;
  log.add(severity, scrub(std::string(facility) + ": " + text), Clock::now());
}

}  // namespace outbox::publish
