// What librdkafka alone does with the messages that the benchmark enqueues: the yardstick of `make bench`.
//   bare-producer BOOTSTRAP TOPIC COUNT [MESSAGES_A_SECOND]
// The configuration is made by outbox's own src/publish/config.cpp, so it is the same; payload, key and header `id` have
// the sizes of the benchmark's. Payloads are prepared before the clock starts, and like outbox's they are not copied by
// librdkafka. Prints: seconds from the first produce to the last report, CPU seconds of the process in between, p50 and
// p99 of the milliseconds from produce to report (of use with a rate only).
//   bare-producer queue
// The megabytes that librdkafka's queue takes when it is full of such messages, their payloads not counted.
//   bare-producer version
// The version of librdkafka.
#include <librdkafka/rdkafka.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "publish/config.hpp"

namespace {

using outbox::publish::ErrorHandle;
using outbox::publish::EventHandle;
using outbox::publish::KafkaHandle;
using outbox::publish::QueueHandle;
using outbox::publish::TopicHandle;
using Clock = std::chrono::steady_clock;

constexpr std::size_t payload_size = 200;
constexpr std::size_t id_size = 36;
constexpr std::size_t keys = 10'000;

struct Message {
  std::string payload, key, id;
  Clock::time_point produced, reported;
};

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "bare-producer: %s\n", what);
  std::exit(1);
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double peak_megabytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

std::vector<Message> make_messages(std::size_t count) {
  std::vector<Message> messages(count);
  for (std::size_t i = 0; i < count; ++i) {
    Message& message = messages[i];
    message.payload = std::to_string(i);
    message.payload.insert(0, payload_size - message.payload.size(), 'x');
    message.key = "key-" + std::to_string(i % keys);
    message.id = std::to_string(i);
    message.id.insert(0, id_size - message.id.size(), '0');
  }
  return messages;
}

rd_kafka_vu_t memory(rd_kafka_vtype_t type, std::string& text) {
  rd_kafka_vu_t argument{};
  argument.vtype = type;
  argument.u.mem.ptr = text.data();
  argument.u.mem.size = text.size();
  return argument;
}

class BareProducer {
 public:
  BareProducer(const char* bootstrap, const char* topic) {
    outbox::publish::Settings settings;
    settings.properties = {{"bootstrap.servers", bootstrap}};
    auto config = outbox::publish::make_config(settings, outbox::publish::Route::batches);
    if (!config.handle) fail(config.error.c_str());
    std::array<char, 512> text{};
    kafka_.reset(rd_kafka_new(RD_KAFKA_PRODUCER, config.handle.get(), text.data(), text.size()));
    if (!kafka_) fail(text.data());
    (void)config.handle.release();  // NOLINT(bugprone-unused-return-value): rd_kafka_new owns it when it succeeds
    events_.reset(rd_kafka_queue_get_main(kafka_.get()));
    rd_kafka_set_log_queue(kafka_.get(), events_.get());
    topic_.reset(rd_kafka_topic_new(kafka_.get(), topic, nullptr));
  }

  // False: the queue is full.
  bool send(Message& message) {
    std::array<rd_kafka_vu_t, 6> arguments{};
    arguments[0].vtype = RD_KAFKA_VTYPE_RKT;
    arguments[0].u.rkt = topic_.get();
    arguments[1].vtype = RD_KAFKA_VTYPE_OPAQUE;
    arguments[1].u.ptr = &message;
    arguments[2].vtype = RD_KAFKA_VTYPE_TIMESTAMP;
    arguments[2].u.i64 = std::chrono::system_clock::now().time_since_epoch() / std::chrono::milliseconds(1);
    arguments[3] = memory(RD_KAFKA_VTYPE_VALUE, message.payload);
    arguments[4] = memory(RD_KAFKA_VTYPE_KEY, message.key);
    arguments[5].vtype = RD_KAFKA_VTYPE_HEADER;
    arguments[5].u.header = {"id", message.id.data(), static_cast<ssize_t>(message.id.size())};
    message.produced = Clock::now();
    const ErrorHandle error(rd_kafka_produceva(kafka_.get(), arguments.data(), arguments.size()));
    if (!error) return true;
    if (rd_kafka_error_code(error.get()) != RD_KAFKA_RESP_ERR__QUEUE_FULL) fail(rd_kafka_error_string(error.get()));
    return false;
  }

  // Returns how many messages were reported.
  std::size_t poll(int timeout_ms) {
    const EventHandle event(rd_kafka_queue_poll(events_.get(), timeout_ms));
    if (!event || rd_kafka_event_type(event.get()) != RD_KAFKA_EVENT_DR) return 0;
    const auto now = Clock::now();
    std::size_t reported = 0;
    while (const rd_kafka_message_t* message = rd_kafka_event_message_next(event.get())) {
      if (message->err != RD_KAFKA_RESP_ERR_NO_ERROR) fail(rd_kafka_err2str(message->err));
      static_cast<Message*>(message->_private)->reported = now;
      ++reported;
    }
    return reported;
  }

  // A first message: connection, topic and producer id are there when the clock starts.
  void warm_up() {
    auto messages = make_messages(1);
    if (!send(messages.front())) fail("the queue is full");
    while (poll(100) == 0) continue;
  }

 private:
  KafkaHandle kafka_;
  QueueHandle events_;
  TopicHandle topic_;
};

void send_all(BareProducer& producer, std::vector<Message>& messages) {
  constexpr std::size_t produce_between_polls = 1000;
  std::size_t reported = 0;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    while (!producer.send(messages[i])) reported += producer.poll(10);
    if (i % produce_between_polls != 0) continue;
    while (const auto more = producer.poll(0)) reported += more;
  }
  while (reported < messages.size()) reported += producer.poll(100);
}

// Reports are taken in a thread of their own: the one that sends would otherwise sleep on them.
void send_at(BareProducer& producer, std::vector<Message>& messages, double rate) {
  std::thread reports([&] {
    for (std::size_t reported = 0; reported < messages.size();) reported += producer.poll(100);
  });
  const auto started = Clock::now();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::chrono::duration<double> due(static_cast<double>(i) / rate);
    std::this_thread::sleep_until(started + std::chrono::duration_cast<Clock::duration>(due));
    if (!producer.send(messages[i])) fail("the queue is full");
  }
  reports.join();
}

double percentile(std::vector<Message>& messages, std::size_t percent) {
  const auto at = messages.begin() + static_cast<std::ptrdiff_t>(messages.size() * percent / 100);
  std::ranges::nth_element(messages, at, {},
                           [](const Message& message) { return message.reported - message.produced; });
  return std::chrono::duration<double, std::milli>(at->reported - at->produced).count();
}

void print_queue() {
  auto messages = make_messages(1'000'000);
  BareProducer producer("127.0.0.1:1", "nowhere");
  const double before = peak_megabytes();
  const auto full = std::ranges::find_if_not(messages, [&](Message& message) { return producer.send(message); });
  if (full == messages.end()) fail("the queue does not fill");
  std::printf("%.1f\n", peak_megabytes() - before);
}

void measure(const char* bootstrap, const char* topic, std::size_t count, double rate) {
  auto messages = make_messages(count);
  if (messages.empty()) fail("COUNT must be a positive number");
  BareProducer producer(bootstrap, topic);
  producer.warm_up();

  const double cpu = cpu_seconds();
  const auto started = Clock::now();
  if (rate > 0)
    send_at(producer, messages, rate);
  else
    send_all(producer, messages);
  const std::chrono::duration<double> seconds = Clock::now() - started;
  const double cpu_used = cpu_seconds() - cpu;
  const double p50 = percentile(messages, 50);
  std::printf("%.6f %.3f %.3f %.3f\n", seconds.count(), cpu_used, p50, percentile(messages, 99));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  if (argc == 2 && what == "version")
    std::puts(rd_kafka_version_str());
  else if (argc == 2 && what == "queue")
    print_queue();
  else if (argc == 4 || argc == 5)
    measure(argv[1], argv[2], std::strtoul(argv[3], nullptr, 10), argc == 5 ? std::strtod(argv[4], nullptr) : 0);
  else
    fail("usage: bare-producer BOOTSTRAP TOPIC COUNT [MESSAGES_A_SECOND] | queue | version");
  return 0;
}
