#include "kafka_fixture.hpp"

#include <algorithm>

namespace outbox::publish::test {

namespace {

std::optional<std::string> text_of(const void* data, std::size_t size) {
  if (data == nullptr) return std::nullopt;
  return std::string(static_cast<const char*>(data), size);
}

Received received(const rd_kafka_message_t& message) {
  Received record{message.partition,
                  message.offset,
                  rd_kafka_message_timestamp(&message, nullptr),
                  text_of(message.key, message.key_len),
                  text_of(message.payload, message.len),
                  {}};
  rd_kafka_headers_t* headers = nullptr;
  if (rd_kafka_message_headers(&message, &headers) != RD_KAFKA_RESP_ERR_NO_ERROR) return record;
  const char* name = nullptr;
  const void* value = nullptr;
  std::size_t size = 0;
  for (std::size_t i = 0; rd_kafka_header_get_all(headers, i, &name, &value, &size) == RD_KAFKA_RESP_ERR_NO_ERROR;
       ++i) {
    record.headers.emplace_back(name, text_of(value, size));
  }
  return record;
}

KafkaHandle new_consumer(const std::string& bootstrap) {
  std::array<char, 512> text{};
  ConfHandle conf(rd_kafka_conf_new());
  for (const auto& [name, value] : {std::pair{"bootstrap.servers", bootstrap.c_str()},
                                    {"group.id", "test"},
                                    {"auto.offset.reset", "earliest"},
                                    {"enable.auto.commit", "false"}}) {
    rd_kafka_conf_set(conf.get(), name, value, text.data(), text.size());
  }
  KafkaHandle consumer(rd_kafka_new(RD_KAFKA_CONSUMER, conf.release(), text.data(), text.size()));
  if (!consumer) throw std::runtime_error(text.data());
  rd_kafka_poll_set_consumer(consumer.get());
  return consumer;
}

int partition_count(rd_kafka_t* consumer, const std::string& topic) {
  const TopicHandle handle(rd_kafka_topic_new(consumer, topic.c_str(), nullptr));
  const rd_kafka_metadata_t* metadata = nullptr;
  constexpr int timeout_ms = 10'000;
  if (rd_kafka_metadata(consumer, 0, handle.get(), &metadata, timeout_ms) != RD_KAFKA_RESP_ERR_NO_ERROR) {
    throw std::runtime_error("no metadata");
  }
  const MetadataHandle owned(metadata);
  return metadata->topics[0].partition_cnt;
}

}  // namespace

namespace {

// Reads from the beginning until `enough` holds, at most for the time given.
std::vector<Received> read(rd_kafka_t* consumer, const std::string& topic, int partitions, std::chrono::seconds limit,
                           const std::function<bool(const std::vector<Received>&)>& enough) {
  auto* assignment = rd_kafka_topic_partition_list_new(partitions);
  for (int i = 0; i < partitions; ++i)
    rd_kafka_topic_partition_list_add(assignment, topic.c_str(), i)->offset = RD_KAFKA_OFFSET_BEGINNING;
  rd_kafka_assign(consumer, assignment);
  rd_kafka_topic_partition_list_destroy(assignment);

  std::vector<Received> records;
  const auto deadline = Clock::now() + limit;
  while (!enough(records) && Clock::now() < deadline) {
    auto* message = rd_kafka_consumer_poll(consumer, 50);
    if (message == nullptr) continue;
    if (message->err == RD_KAFKA_RESP_ERR_NO_ERROR) records.push_back(received(*message));
    rd_kafka_message_destroy(message);
  }
  rd_kafka_consumer_close(consumer);
  if (!enough(records))
    throw std::runtime_error("only " + std::to_string(records.size()) + " records of " + topic + " came");
  std::ranges::sort(records, {}, [](const Received& r) { return std::pair(r.partition, r.offset); });
  return records;
}

}  // namespace

std::vector<Received> consume(const std::string& bootstrap, const std::string& topic, std::size_t count,
                              std::chrono::seconds limit) {
  const KafkaHandle consumer = new_consumer(bootstrap);
  return read(consumer.get(), topic, partition_count(consumer.get(), topic), limit,
              [&](const auto& records) { return records.size() >= count; });
}

std::vector<Received> consume_all(const std::string& bootstrap, const std::string& topic) {
  const KafkaHandle consumer = new_consumer(bootstrap);
  const int partitions = partition_count(consumer.get(), topic);
  std::int64_t count = 0;
  for (int i = 0; i < partitions; ++i) {
    constexpr int timeout_ms = 10'000;
    std::int64_t first = 0;
    std::int64_t end = 0;
    const auto error = rd_kafka_query_watermark_offsets(consumer.get(), topic.c_str(), i, &first, &end, timeout_ms);
    if (error != RD_KAFKA_RESP_ERR_NO_ERROR) throw std::runtime_error(rd_kafka_err2str(error));
    count += end - first;
  }
  return read(consumer.get(), topic, partitions, 20s,
              [&](const auto& records) { return static_cast<std::int64_t>(records.size()) >= count; });
}

Driver::Driver(std::vector<Property> properties, std::int64_t max_message_bytes)
    : publisher_(std::make_unique<Publisher>(Settings{std::move(properties), max_message_bytes, "outbox-test"})) {}

bool Driver::try_submit(Message message) {
  auto& kept = kept_.emplace_back(Kept{std::move(message), {}});
  for (const auto& [name, value] : kept.message.headers) kept.headers.push_back({name, value});
  const auto now_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  const Record record{next_ticket_,         kept.message.topic, kept.message.key,
                      kept.message.payload, kept.headers,       kept.message.timestamp_ms.value_or(now_ms)};
  if (!publisher_->submit(record)) {
    kept_.pop_back();
    return false;
  }
  ++next_ticket_;
  return true;
}

std::uint64_t Driver::submit(Message message) {
  if (!poll_until([&] { return try_submit(message); })) throw std::runtime_error("the publisher takes no record");
  return last_ticket();
}

bool Driver::poll_until(const std::function<bool()>& done, std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  while (!done()) {
    const auto now = Clock::now();
    if (now >= deadline) return false;
    auto until = std::min(publisher_->next_poll().value_or(deadline), deadline);
    // What a test waits for may come from elsewhere, so it is looked at now and then.
    until = std::min(until, now + 20ms);
    const auto wait = std::max(std::chrono::ceil<std::chrono::milliseconds>(until - now), 0ms);
    pollfd wake{publisher_->wake_fd(), POLLIN, 0};
    ::poll(&wake, 1, static_cast<int>(wait.count()));
    poll_once();
  }
  return true;
}

bool Driver::poll_until_all_done(std::chrono::milliseconds limit) {
  return poll_until([this] { return publisher_->outstanding() == 0; }, limit);
}

void Driver::poll_once() {
  std::vector<Outcome> outcomes;
  publisher_->poll(outcomes);
  take(outcomes);
}

void Driver::close(std::chrono::milliseconds limit) {
  std::vector<Outcome> outcomes;
  publisher_->close(limit, outcomes);
  take(outcomes);
}

const Outcome* Driver::outcome(std::uint64_t ticket) const {
  const auto found = outcomes_.find(ticket);
  return found == outcomes_.end() ? nullptr : &found->second;
}

void Driver::take(std::vector<Outcome>& outcomes) {
  for (auto& outcome : outcomes) {
    ++(outcome.kind == Outcome::Kind::published ? published_ : refused_);
    const auto ticket = outcome.ticket;
    if (!outcomes_.emplace(ticket, std::move(outcome)).second) ++repeated_;
  }
}

}  // namespace outbox::publish::test
