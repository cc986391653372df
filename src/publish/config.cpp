#include "config.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

#include "options.hpp"

namespace outbox::publish {

namespace {

struct Item {
  const char* name;
  const char* value;
};

constexpr std::array defaults = std::to_array<Item>({
    {"linger.ms", "0"},  // what is waiting is the batch
    {"socket.timeout.ms", "10000"},
    {"socket.connection.setup.timeout.ms", "10000"},
    {"socket.keepalive.enable", "true"},
    {"queue.buffering.max.messages", "100000"},
    {"queue.buffering.max.kbytes", "65536"},
    {"topic.metadata.refresh.interval.ms", "60000"},
    {"reconnect.backoff.max.ms", "2000"},  // a broker that is back is noticed soon
});

constexpr std::array fixed = std::to_array<Item>({
    {"enable.idempotence", "true"},
    {"acks", "all"},
    {"partitioner", "murmur2_random"},
    {"message.timeout.ms", "0"},
    {"log.queue", "true"},
});

// Header id, and what Kafka's format adds to many small headers beyond what outbox.max_message_bytes counts.
constexpr std::int64_t message_room = 64 * 1024;
constexpr std::int64_t message_ceiling = 1'000'000'000;  // librdkafka's
constexpr std::int64_t message_floor = 1'000'000;

bool set(rd_kafka_conf_t* conf, const char* name, const std::string& value, std::string& error) {
  std::array<char, 512> text{};
  const auto result = rd_kafka_conf_set(conf, name, value.c_str(), text.data(), text.size());
  if (result == RD_KAFKA_CONF_OK) return true;
  error = text.data();
  return false;
}

std::string get(const rd_kafka_conf_t* conf, const char* name) {
  std::array<char, 512> value{};
  std::size_t size = value.size();
  if (rd_kafka_conf_get(conf, name, value.data(), &size) != RD_KAFKA_CONF_OK) return {};
  return value.data();
}

std::int64_t get_number(const rd_kafka_conf_t* conf, const char* name) {
  const auto text = get(conf, name);
  std::int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// Superuser questions were settled when the options were set; here only what would make a promise of ours untrue.
bool set_operators(rd_kafka_conf_t* conf, const Settings& settings, std::string& error) {
  for (const auto& [name, value] : settings.properties) {
    const auto verdict = check_option(name, value, is_secret(name) ? Place::user_mapping : Place::server, true);
    if (verdict.kind != Verdict::Kind::ok) {
      error = verdict.message;
      return false;
    }
    if (!set(conf, name.c_str(), value, error)) return false;
  }
  return true;
}

bool set_route(rd_kafka_conf_t* conf, Route route, std::string& error) {
  if (route == Route::batches) return true;
  return set(conf, "batch.num.messages", "1", error) && set(conf, "linger.ms", "0", error);
}

bool set_sizes(rd_kafka_conf_t* conf, const Settings& settings, std::string& error) {
  const auto message = std::clamp(settings.max_message_bytes + message_room, message_floor, message_ceiling);
  if (!set(conf, "message.max.bytes", std::to_string(message), error)) return false;
  constexpr std::int64_t messages_in_queue = 4;
  const auto kbytes = message * messages_in_queue / 1024;
  if (get_number(conf, "queue.buffering.max.kbytes") >= kbytes) return true;
  return set(conf, "queue.buffering.max.kbytes", std::to_string(kbytes), error);
}

}  // namespace

Config make_config(const Settings& settings, Route route) {
  Config config;
  ConfHandle conf(rd_kafka_conf_new());
  bool good = set(conf.get(), "client.id", settings.client_id, config.error);
  for (const auto& item : defaults) good = good && set(conf.get(), item.name, item.value, config.error);
  good = good && set_operators(conf.get(), settings, config.error);
  good = good && set_route(conf.get(), route, config.error) && set_sizes(conf.get(), settings, config.error);
  for (const auto& item : fixed) good = good && set(conf.get(), item.name, item.value, config.error);
  if (good && get(conf.get(), "bootstrap.servers").empty()) {
    config.error = "\"bootstrap.servers\" is not set";
    good = false;
  }
  if (!good) return config;
  rd_kafka_conf_set_events(conf.get(), RD_KAFKA_EVENT_DR | RD_KAFKA_EVENT_ERROR | RD_KAFKA_EVENT_LOG);
  config.batch_bytes = std::min(get_number(conf.get(), "batch.size"), get_number(conf.get(), "message.max.bytes"));
  config.queue_messages = static_cast<std::size_t>(get_number(conf.get(), "queue.buffering.max.messages"));
  const auto codec = get(conf.get(), "compression.codec");
  config.compressed = !codec.empty() && codec != "none";
  config.mechanism = get(conf.get(), "sasl.mechanism");
  config.handle = std::move(conf);
  return config;
}

}  // namespace outbox::publish
