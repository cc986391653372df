// Gets an error code, hands on its kind (see the table of failures in docs) and a sentence for the operator.
#include "failure.hpp"

#include <algorithm>
#include <array>

namespace outbox::publish {

namespace {

constexpr auto unknown_topic_id = static_cast<rd_kafka_resp_err_t>(100);  // librdkafka 2.0 has no name for it

struct Kind {
  rd_kafka_resp_err_t error;
  Failure failure;
};

constexpr std::array kinds = std::to_array<Kind>({
    {RD_KAFKA_RESP_ERR__QUEUE_FULL, Failure::backpressure},
    {RD_KAFKA_RESP_ERR__PURGE_QUEUE, Failure::purged},
    {RD_KAFKA_RESP_ERR__PURGE_INFLIGHT, Failure::purged},
    {RD_KAFKA_RESP_ERR__DESTROY, Failure::purged},
    {unknown_topic_id, Failure::topic},
    {RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC, Failure::topic},
    {RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION, Failure::topic},
    {RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART, Failure::topic},
    {RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED, Failure::topic},
    {RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION, Failure::topic},
    {RD_KAFKA_RESP_ERR__FATAL, Failure::producer},
    {RD_KAFKA_RESP_ERR__STATE, Failure::producer},
    {RD_KAFKA_RESP_ERR__FENCED, Failure::producer},
    {RD_KAFKA_RESP_ERR__GAPLESS_GUARANTEE, Failure::producer},
    {RD_KAFKA_RESP_ERR__INCONSISTENT, Failure::producer},
    {RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER, Failure::producer},
    {RD_KAFKA_RESP_ERR_UNKNOWN_PRODUCER_ID, Failure::producer},
    {RD_KAFKA_RESP_ERR_INVALID_PRODUCER_ID_MAPPING, Failure::producer},
    {RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH, Failure::producer},
    {RD_KAFKA_RESP_ERR_PRODUCER_FENCED, Failure::producer},
    {RD_KAFKA_RESP_ERR__AUTHENTICATION, Failure::configuration},
    {RD_KAFKA_RESP_ERR__SSL, Failure::configuration},
    {RD_KAFKA_RESP_ERR_SASL_AUTHENTICATION_FAILED, Failure::configuration},
    {RD_KAFKA_RESP_ERR_UNSUPPORTED_SASL_MECHANISM, Failure::configuration},
    {RD_KAFKA_RESP_ERR_ILLEGAL_SASL_STATE, Failure::configuration},
    {RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED, Failure::configuration},
    // librdkafka retries these itself, but hands them on when the producer id changed under the batch.
    {RD_KAFKA_RESP_ERR__TRANSPORT, Failure::broker},
    {RD_KAFKA_RESP_ERR__RESOLVE, Failure::broker},
    {RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN, Failure::broker},
    {RD_KAFKA_RESP_ERR__TIMED_OUT, Failure::broker},
    {RD_KAFKA_RESP_ERR__TIMED_OUT_QUEUE, Failure::broker},
    {RD_KAFKA_RESP_ERR__MSG_TIMED_OUT, Failure::broker},
    {RD_KAFKA_RESP_ERR__RETRY, Failure::broker},
    {RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE, Failure::broker},
    {RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION, Failure::broker},
    {RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT, Failure::broker},
    {RD_KAFKA_RESP_ERR_BROKER_NOT_AVAILABLE, Failure::broker},
    {RD_KAFKA_RESP_ERR_REPLICA_NOT_AVAILABLE, Failure::broker},
    {RD_KAFKA_RESP_ERR_NETWORK_EXCEPTION, Failure::broker},
    {RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS, Failure::broker},
    {RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS_AFTER_APPEND, Failure::broker},
    {RD_KAFKA_RESP_ERR_NOT_CONTROLLER, Failure::broker},
    {RD_KAFKA_RESP_ERR_KAFKA_STORAGE_ERROR, Failure::broker},
    {RD_KAFKA_RESP_ERR_FENCED_LEADER_EPOCH, Failure::broker},
    {RD_KAFKA_RESP_ERR_UNKNOWN_LEADER_EPOCH, Failure::broker},
    {RD_KAFKA_RESP_ERR_THROTTLING_QUOTA_EXCEEDED, Failure::broker},
    {RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS, Failure::broker},
    {RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE, Failure::broker},
    {RD_KAFKA_RESP_ERR_NOT_COORDINATOR, Failure::broker},
});

std::string quoted(std::string_view topic) {
  std::string text = "topic \"";
  text.append(topic);
  text += '"';
  return text;
}

}  // namespace

Failure classify(rd_kafka_resp_err_t error) {
  if (error == RD_KAFKA_RESP_ERR_NO_ERROR) return Failure::none;
  const auto* known = std::ranges::find(kinds, error, &Kind::error);
  return known == kinds.end() ? Failure::record : known->failure;
}

std::string_view without_counts(std::string_view text) { return text.substr(0, text.find(" (after ")); }

std::string tls_reason(std::string_view text) {
  constexpr std::string_view failed = "certificate verify failed";
  const auto at = text.find(failed);
  if (at == std::string_view::npos) return std::string(text);
  return std::string(text.substr(0, at)) + std::string(failed) +
         ": the broker's certificate has expired, is not signed by a CA in ssl.ca.pem or ssl.ca.location, or is not "
         "for "
         "this host name";
}

std::string topic_reason(std::string_view topic, rd_kafka_resp_err_t error) {
  switch (error) {
    case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
      return quoted(topic) +
             " is forbidden: Kafka denies this client the right to write to it; grant WRITE and DESCRIBE";
    case RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION:
      return quoted(topic) + " has a name that Kafka does not accept";
    case RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC:
    case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
      return quoted(topic) + " is unknown to Kafka and was not created; create it";
    default:
      return quoted(topic) + " cannot be published to: " + rd_kafka_err2str(error);
  }
}

std::string record_reason(std::string_view topic, rd_kafka_resp_err_t error, std::string_view detail) {
  std::string text = quoted(topic) + ": Kafka refused this message alone: ";
  text += rd_kafka_err2str(error);
  if (!detail.empty() && detail != rd_kafka_err2str(error)) text.append(" (").append(detail).append(")");
  switch (error) {
    case RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE:
    case RD_KAFKA_RESP_ERR_RECORD_LIST_TOO_LARGE:
      return text + "; raise max.message.bytes of the topic, or segment.bytes where that is smaller";
    case RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP:
      return text + "; the topic's message.timestamp.before.max.ms or message.timestamp.after.max.ms excludes its time";
    case RD_KAFKA_RESP_ERR_INVALID_RECORD:
      return text + "; a compacted topic takes no message without a key, and a broker may check more";
    default:
      return text;
  }
}

}  // namespace outbox::publish
