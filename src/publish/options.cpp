// Gets the name and value of one librdkafka property, hands on whether it may stand where somebody wants to put it.
//
// Three tables, by what a property could do: break a guarantee of ours, read files or run code as the server, or
// give a secret away. What is in none of them is librdkafka's to judge.
#include "options.hpp"

#include <librdkafka/rdkafka.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "handles.hpp"

namespace outbox::publish {

namespace {

struct Fixed {
  std::string_view name;
  std::string_view why;
};

constexpr std::string_view only_acks_all = "a message counts as published only when all in-sync replicas have it";
constexpr std::string_view no_timeout =
    "a message is sent until Kafka has it; with a time limit it could be reported lost and be on the topic";
constexpr std::string_view always_retried = "a message is sent until Kafka has it";
constexpr std::string_view own_events = "outbox takes reports, errors and logs through librdkafka's event queues";
constexpr std::string_view not_transactional = "outbox publishes at least once, without Kafka transactions";
constexpr std::string_view no_callbacks = "it can only be set by a program";
constexpr std::string_view needs_current_protocol = "idempotence and headers need the protocol that brokers announce";

constexpr std::array fixed_properties = std::to_array<Fixed>({
    {"acks", only_acks_all},
    {"request.required.acks", only_acks_all},
    {"enable.idempotence", "repeats must not be stored twice or out of order"},
    {"enable.gapless.guarantee", "one refused message would end the producer for all"},
    {"partitioner", "outbox chooses partitions as Java clients do (murmur2_random)"},
    {"message.timeout.ms", no_timeout},
    {"delivery.timeout.ms", no_timeout},
    {"message.send.max.retries", always_retried},
    {"retries", always_retried},
    {"transactional.id", not_transactional},
    {"transaction.timeout.ms", not_transactional},
    {"queuing.strategy", "messages of one key are sent in order"},
    {"msg_order_cmp", "messages of one key are sent in order"},
    {"delivery.report.only.error", own_events},
    {"produce.offset.report", own_events},
    {"log.queue", own_events},
    {"enabled_events", own_events},
    {"topic.blacklist", "messages of a hidden topic would wait for ever"},
    {"topic.denylist", "messages of a hidden topic would wait for ever"},
    {"internal.termination.signal", "signals in a server process belong to the server"},
    {"api.version.request", needs_current_protocol},
    {"api.version.fallback.ms", needs_current_protocol},
    {"broker.version.fallback", needs_current_protocol},
    {"builtin.features", no_callbacks},
    {"interceptors", no_callbacks},
    {"opaque", no_callbacks},
    {"default_topic_conf", no_callbacks},
    {"ssl_key", no_callbacks},
    {"ssl_certificate", no_callbacks},
    {"ssl_ca", no_callbacks},
    {"ssl_engine_callback_data", no_callbacks},
});

// sasl.kerberos.*: librdkafka puts them into a command line that it gives to a shell.
constexpr std::array superuser_properties = std::to_array<std::string_view>({
    "plugin.library.paths",
    "ssl.engine.location",
    "ssl.engine.id",
    "ssl.providers",
    "ssl.key.location",
    "ssl.certificate.location",
    "ssl.ca.location",
    "ssl.crl.location",
    "ssl.keystore.location",
    "https.ca.location",
    "sasl.kerberos.kinit.cmd",
    "sasl.kerberos.keytab",
    "sasl.kerberos.principal",
    "sasl.kerberos.service.name",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.metadata.authentication.type",
    "sasl.oauthbearer.assertion.private.key.file",
    "sasl.oauthbearer.assertion.file",
    "sasl.oauthbearer.assertion.jwt.template.file",
    "offset.store.path",
});

constexpr std::array secret_properties = std::to_array<std::string_view>({
    "sasl.password",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.password",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.private.key.pem",
});

// Not secret, but they belong to somebody as a secret does.
constexpr std::array credential_properties = std::to_array<std::string_view>({
    "sasl.username",
    "ssl.certificate.pem",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.keystore.location",
    "sasl.kerberos.keytab",
    "sasl.kerberos.principal",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.extensions",
    "sasl.oauthbearer.assertion.private.key.file",
    "sasl.oauthbearer.assertion.file",
    "sasl.oauthbearer.assertion.claim.sub",
});

constexpr std::array consumer_properties = std::to_array<std::string_view>({
    "group.id",
    "group.instance.id",
    "group.protocol",
    "group.protocol.type",
    "group.remote.assignor",
    "partition.assignment.strategy",
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "coordinator.query.interval.ms",
    "max.poll.interval.ms",
    "max.poll.records",
    "enable.auto.commit",
    "auto.commit.enable",
    "auto.commit.interval.ms",
    "enable.auto.offset.store",
    "queued.min.messages",
    "queued.max.messages.kbytes",
    "fetch.wait.max.ms",
    "fetch.queue.backoff.ms",
    "fetch.message.max.bytes",
    "max.partition.fetch.bytes",
    "fetch.max.bytes",
    "fetch.min.bytes",
    "fetch.error.backoff.ms",
    "offset.store.method",
    "offset.store.sync.interval.ms",
    "isolation.level",
    "enable.partition.eof",
    "check.crcs",
    "auto.offset.reset",
    "consume.callback.max.messages",
    "share.acknowledgement.mode",
});

template <std::size_t N>
bool contains(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

std::string quoted(std::string_view name) { return '"' + std::string(name) + '"'; }

// A version of librdkafka that is not out yet may know names that ours does not.
bool sounds_secret(std::string_view name) {
  constexpr auto words =
      std::to_array<std::string_view>({"password", "passphrase", "secret", "private.key.pem", "key.pem"});
  return std::ranges::any_of(words, [&](auto word) { return name.find(word) != std::string_view::npos; });
}

std::optional<Verdict> check_guarantee(std::string_view name, std::string_view value) {
  const auto refuse = [&](std::string_view why, std::string hint) {
    return Verdict{Verdict::Kind::guarantee, quoted(name) + " cannot be set: " + std::string(why), std::move(hint)};
  };
  const auto* fixed = std::ranges::find(fixed_properties, name, &Fixed::name);
  if (fixed != fixed_properties.end()) return refuse(fixed->why, "Leave it out.");
  if (name == "message.max.bytes")
    return refuse("it follows the size that enqueue accepts", "Set outbox.max_message_bytes instead.");
  if (name.ends_with("_cb")) return refuse(no_callbacks, "Leave it out.");
  if (name.starts_with("test.") || name.starts_with("ut_")) {
    return refuse("it replaces Kafka by a test double, and messages would be gone", "Leave it out.");
  }
  if (contains(consumer_properties, name))
    return refuse("it is a consumer's property, and outbox only produces", "Leave it out.");
  if (name == "max.in.flight" || name == "max.in.flight.requests.per.connection") {
    int number = 0;
    std::from_chars(value.data(), value.data() + value.size(), number);
    if (number > 5) return refuse("Kafka keeps the order of at most 5 requests in flight", "Use 1 to 5.");
  }
  if (name == "queue.buffering.max.messages" && value == "0") {
    return refuse("0 means without limit, and the server's memory is limited", "Use 1 or more.");
  }
  return std::nullopt;
}

bool runs_as_server(std::string_view name, std::string_view value) {
  if (contains(superuser_properties, name)) return true;
  return (name == "sasl.mechanism" || name == "sasl.mechanisms") && value == "GSSAPI";  // runs kinit
}

Verdict check_value(std::string_view name, std::string_view value) {
  const ConfHandle scratch(rd_kafka_conf_new());
  std::array<char, 512> text{};
  const auto result =
      rd_kafka_conf_set(scratch.get(), std::string(name).c_str(), std::string(value).c_str(), text.data(), text.size());
  const bool left_out = std::string_view(text.data()).find("not supported in this build") != std::string_view::npos;
  if (result == RD_KAFKA_CONF_UNKNOWN || left_out) {
    return {Verdict::Kind::unknown,
            "librdkafka " + library_version() + (left_out ? " was built without " : " does not know ") + quoted(name),
            "Nothing is published with this server while it is set."};
  }
  if (result == RD_KAFKA_CONF_OK) return {};
  if (is_secret(name) || contains(credential_properties, name)) {
    return {Verdict::Kind::bad_value, "librdkafka does not accept the value of " + quoted(name), ""};
  }
  return {Verdict::Kind::bad_value, "librdkafka does not accept the value of " + quoted(name) + ": " + text.data(), ""};
}

}  // namespace

bool is_secret(std::string_view name) { return contains(secret_properties, name) || sounds_secret(name); }

bool names_file(std::string_view name) {
  return name.ends_with(".location") || name.ends_with(".file") || name.ends_with(".keytab");
}

Verdict check_option(std::string_view name, std::string_view value, Place place, bool superuser) {
  if (place == Place::server && is_secret(name)) {
    return {Verdict::Kind::secret, quoted(name) + " is a secret, and everyone can read the options of a server",
            "Set it in the user mapping of the server's owner: CREATE USER MAPPING FOR ... SERVER ... OPTIONS (...)."};
  }
  if (auto verdict = check_guarantee(name, value)) return *verdict;
  if (place == Place::user_mapping && !is_secret(name) && !contains(credential_properties, name)) {
    return {Verdict::Kind::wrong_place, quoted(name) + " does not belong in a user mapping",
            "Set it as an option of the server."};
  }
  if (!superuser && runs_as_server(name, value)) {
    return {Verdict::Kind::superuser_only,
            "only a superuser may set " + quoted(name) +
                " to this value, since librdkafka then reads files, runs a program or calls an address as the server",
            name.starts_with("ssl.")
                ? "Put certificates and keys in as text: ssl.ca.pem, ssl.certificate.pem, ssl.key.pem."
                : "Let a superuser own the server."};
  }
  return check_value(name, value);
}

std::string library_version() { return rd_kafka_version_str(); }

std::optional<std::string> scram_warning(std::string_view mechanism) {
  constexpr int scram_mended = 0x020601ff;
  if (!mechanism.starts_with("SCRAM-") || rd_kafka_version() >= scram_mended) return std::nullopt;
  return "librdkafka " + library_version() + " cannot authenticate with " + std::string(mechanism) +
         " to Kafka 4 brokers; 2.6.1 or newer can, and sasl.mechanism=PLAIN over TLS works with any version";
}

}  // namespace outbox::publish
