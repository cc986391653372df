#include "producer.hpp"

#include <algorithm>
#include <array>
#include <span>

namespace outbox::publish {

namespace {

// librdkafka takes a null pointer for "none", and a view of nothing may have one.
const char* not_null(std::string_view text) { return text.data() != nullptr ? text.data() : ""; }

// The arguments of one rd_kafka_produceva. They are wide and only partly read, so they are not cleared.
class Arguments {
 public:
  rd_kafka_vu_t& add(rd_kafka_vtype_t type) {
    room_[count_].vtype = type;
    return room_[count_++];
  }
  void add(rd_kafka_vtype_t type, const std::optional<std::string_view>& field) {
    if (!field) return;
    auto& memory = add(type).u.mem;
    memory.ptr = const_cast<char*>(not_null(*field));
    memory.size = field->size();
  }
  [[nodiscard]] const rd_kafka_vu_t* data() const { return room_.data(); }
  [[nodiscard]] std::size_t count() const { return count_; }

 private:
  static constexpr std::size_t most = 6;
  std::array<rd_kafka_vu_t, most> room_;  // NOLINT(cppcoreguidelines-pro-type-member-init)
  std::size_t count_ = 0;
};

HeadersHandle copy(std::span<const Header> headers) {
  HeadersHandle copied(rd_kafka_headers_new(headers.size()));
  for (const auto& header : headers) {
    const char* value = header.value ? not_null(*header.value) : nullptr;
    const auto size = header.value ? static_cast<ssize_t>(header.value->size()) : 0;
    rd_kafka_header_add(copied.get(), not_null(header.name), -1, value, size);
  }
  return copied;
}

rd_kafka_resp_err_t topic_error(const rd_kafka_metadata_topic_t& topic) {
  if (topic.err == RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE && topic.partition_cnt > 0) return RD_KAFKA_RESP_ERR_NO_ERROR;
  if (topic.err == RD_KAFKA_RESP_ERR_NO_ERROR && topic.partition_cnt == 0)
    return RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE;
  return topic.err;
}

}  // namespace

std::unique_ptr<Producer> Producer::create(Config config, int wake_fd, std::string& error) {
  std::array<char, 512> text{};
  const SignalsBlocked no_signals;
  KafkaHandle kafka(rd_kafka_new(RD_KAFKA_PRODUCER, config.handle.get(), text.data(), text.size()));
  if (!kafka) {
    error = text.data();
    return nullptr;
  }
  (void)config.handle.release();  // NOLINT(bugprone-unused-return-value): rd_kafka_new owns it when it succeeds
  return std::unique_ptr<Producer>(new Producer(std::move(kafka), wake_fd));
}

Producer::Producer(KafkaHandle handle, int wake_fd)
    : kafka_(std::move(handle)),
      events_(rd_kafka_queue_get_main(kafka_.get())),
      admin_(rd_kafka_queue_new(kafka_.get())) {
  rd_kafka_set_log_queue(kafka_.get(), events_.get());
  rd_kafka_queue_io_event_enable(events_.get(), wake_fd, "k", 1);
  rd_kafka_queue_io_event_enable(admin_.get(), wake_fd, "a", 1);
}

TopicHandle Producer::topic(const std::string& name) {
  return TopicHandle(rd_kafka_topic_new(kafka_.get(), name.c_str(), nullptr));
}

rd_kafka_resp_err_t Producer::send(rd_kafka_topic_t* topic, const Record& record, void* opaque) {
  Arguments arguments;
  arguments.add(RD_KAFKA_VTYPE_RKT).u.rkt = topic;
  arguments.add(RD_KAFKA_VTYPE_OPAQUE).u.ptr = opaque;
  arguments.add(RD_KAFKA_VTYPE_TIMESTAMP).u.i64 = record.timestamp_ms;
  arguments.add(RD_KAFKA_VTYPE_VALUE, record.payload);
  arguments.add(RD_KAFKA_VTYPE_KEY, record.key);
  // As headers of ours: before 2.12 librdkafka frees those that it makes itself twice when it does not take the record, as
  // of a topic that it has just learnt is gone.
  HeadersHandle headers;
  if (!record.headers.empty()) {
    headers = copy(record.headers);
    arguments.add(RD_KAFKA_VTYPE_HEADERS).u.headers = headers.get();
  }
  const ErrorHandle error(rd_kafka_produceva(kafka_.get(), arguments.data(), arguments.count()));
  if (error) return rd_kafka_error_code(error.get());
  (void)headers.release();  // NOLINT(bugprone-unused-return-value): the record owns them now
  return RD_KAFKA_RESP_ERR_NO_ERROR;
}

EventHandle Producer::next_event(std::chrono::milliseconds wait) {
  if (EventHandle event{rd_kafka_queue_poll(admin_.get(), 0)}) return event;
  return EventHandle(rd_kafka_queue_poll(events_.get(), static_cast<int>(wait.count())));
}

Producer::Lookup Producer::look_up(rd_kafka_topic_t* topic, std::chrono::milliseconds timeout) {
  const rd_kafka_metadata_t* answer = nullptr;
  Lookup lookup;
  lookup.request = rd_kafka_metadata(kafka_.get(), 0, topic, &answer, static_cast<int>(timeout.count()));
  if (lookup.request != RD_KAFKA_RESP_ERR_NO_ERROR) return lookup;
  const MetadataHandle metadata(answer);
  const std::span topics(metadata->topics, static_cast<std::size_t>(metadata->topic_cnt));
  if (topic != nullptr)
    lookup.topic = topics.size() == 1 ? topic_error(topics.front()) : RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
  else
    for (const auto& one : topics) lookup.topics.emplace(one.topic, topic_error(one));
  const auto controller = rd_kafka_controllerid(kafka_.get(), 0);
  const std::span brokers(metadata->brokers, static_cast<std::size_t>(metadata->broker_cnt));
  lookup.controller_known = std::ranges::find(brokers, controller, &rd_kafka_metadata_broker_t::id) != brokers.end();
  return lookup;
}

void Producer::request_limits(const std::vector<std::string>& topics, std::chrono::milliseconds timeout) {
  std::vector<ResourceHandle> resources;
  std::vector<rd_kafka_ConfigResource_t*> pointers;
  for (const auto& topic : topics) {
    resources.emplace_back(rd_kafka_ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC, topic.c_str()));
    pointers.push_back(resources.back().get());
  }
  const AdminOptionsHandle options(rd_kafka_AdminOptions_new(kafka_.get(), RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS));
  std::array<char, 256> text{};
  rd_kafka_AdminOptions_set_request_timeout(options.get(), static_cast<int>(timeout.count()), text.data(), text.size());
  rd_kafka_DescribeConfigs(kafka_.get(), pointers.data(), pointers.size(), options.get(), admin_.get());
}

std::string Producer::fatal_error() const {
  std::array<char, 512> text{};
  if (rd_kafka_fatal_error(kafka_.get(), text.data(), text.size()) == RD_KAFKA_RESP_ERR_NO_ERROR) return {};
  return text.data();
}

void Producer::purge(Purge what) {
  const int flags = what == Purge::queued ? RD_KAFKA_PURGE_F_QUEUE : RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT;
  rd_kafka_purge(kafka_.get(), flags | RD_KAFKA_PURGE_F_NON_BLOCKING);
}

}  // namespace outbox::publish
