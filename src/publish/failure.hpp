// What an error of Kafka or of librdkafka means for the record that got it, and how to say it.
#pragma once

#include <librdkafka/rdkafka.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace outbox::publish {

enum class Failure : std::uint8_t {
  none,
  backpressure,   // librdkafka's queue is full: offer it again later
  purged,         // we threw the queue away ourselves: says nothing about the record
  broker,         // comes and goes with the brokers: never costs a record anything
  configuration,  // authentication, certificates: like broker, but waiting does not mend it
  topic,          // unknown or forbidden: all its records share it
  record,         // the batch this record was in was refused
  producer        // this producer instance is done for; another one can go on
};

Failure classify(rd_kafka_resp_err_t error);

// An error's text without the milliseconds and numbers that librdkafka counts at its end: the same error is the same text.
std::string_view without_counts(std::string_view text);

// A broker's certificate that OpenSSL does not accept: librdkafka is not told why, so all that it may be is said.
std::string tls_reason(std::string_view text);

// "unknown", "forbidden", …: for a topic that cannot be published to.
std::string topic_reason(std::string_view topic, rd_kafka_resp_err_t error);

// For a record refused alone.
std::string record_reason(std::string_view topic, rd_kafka_resp_err_t error, std::string_view detail);

}  // namespace outbox::publish
