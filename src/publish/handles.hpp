// One deleter for each handle type of librdkafka, and the two system resources that go with a producer.
#pragma once

#include <librdkafka/rdkafka.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <utility>

namespace outbox::publish {

template <auto Destroy>
struct Deleter {
  template <class T>
  void operator()(T* handle) const noexcept {
    Destroy(handle);
  }
};

using ConfHandle = std::unique_ptr<rd_kafka_conf_t, Deleter<rd_kafka_conf_destroy>>;
using KafkaHandle = std::unique_ptr<rd_kafka_t, Deleter<rd_kafka_destroy>>;
using QueueHandle = std::unique_ptr<rd_kafka_queue_t, Deleter<rd_kafka_queue_destroy>>;
using TopicHandle = std::unique_ptr<rd_kafka_topic_t, Deleter<rd_kafka_topic_destroy>>;
using EventHandle = std::unique_ptr<rd_kafka_event_t, Deleter<rd_kafka_event_destroy>>;
using HeadersHandle = std::unique_ptr<rd_kafka_headers_t, Deleter<rd_kafka_headers_destroy>>;
using ErrorHandle = std::unique_ptr<rd_kafka_error_t, Deleter<rd_kafka_error_destroy>>;
using MetadataHandle = std::unique_ptr<const rd_kafka_metadata_t, Deleter<rd_kafka_metadata_destroy>>;
using ResourceHandle = std::unique_ptr<rd_kafka_ConfigResource_t, Deleter<rd_kafka_ConfigResource_destroy>>;
using AdminOptionsHandle = std::unique_ptr<rd_kafka_AdminOptions_t, Deleter<rd_kafka_AdminOptions_destroy>>;

// Threads inherit the mask of the thread that starts them: a signal for the server must never run in librdkafka's.
class SignalsBlocked {
 public:
  SignalsBlocked() noexcept {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) noexcept : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  [[nodiscard]] int get() const noexcept { return fd_; }

 private:
  int fd_;
};

}  // namespace outbox::publish
