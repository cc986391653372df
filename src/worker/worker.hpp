// The worker of one database: the loop that publishes. C++ code.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "claim/batch.hpp"
#include "claim/window.hpp"
#include "publish/publisher.hpp"
#include "shared/shared.hpp"
#include "worker/kafka_server.hpp"
#include "worker/lane.hpp"
#include "worker/life.hpp"
#include "worker/pace.hpp"
#include "worker/situation.hpp"

namespace outbox::worker {

using Clock = std::chrono::steady_clock;

// A crash repeats at most the messages acknowledged in this time.
constexpr std::chrono::milliseconds append_interval{20};
// Everything is announced; this is for what is not.
constexpr std::chrono::seconds look_interval{30};
// A lane that is free and could not be claimed at once.
constexpr std::chrono::seconds claim_interval{1};

class Worker final : public Job {
 public:
  // `number`: among the database's workers, from 0.
  Worker(shared::Database* database, int number);
  ~Worker() override;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Looks, reads, hands to Kafka, takes reports, writes progress. False: the extension is gone.
  bool turn(bool woken) override;
  [[nodiscard]] long sleep_ms() const override;
  [[nodiscard]] int wake_fd() const override;
  // What was sent stays known; database work waits for a moment.
  void back_off(const char* why) override;
  [[nodiscard]] bool says(const char* why) const override;
  // Takes the reports at hand, writes progress, ends the connection to Kafka.
  void finish() override;

 private:
  // look.cpp
  void look();
  bool look_at_segments(Snapshot snapshot);
  bool know_all_segments(Snapshot snapshot);
  void configure(KafkaServer server);
  void serve_segment_request();
  void resubmit_all();

  // claims.cpp
  void share_lanes();
  void claim_lanes(std::size_t most);
  void give_up_left_lanes();
  void begin_anew(bool same_log);
  void let_go_of_lanes();
  void drop_lanes();
  [[nodiscard]] std::size_t fair_share() const;
  [[nodiscard]] bool some_lane_is_free() const;
  void leave_out_of_reach();

  // flow.cpp
  void read();
  std::vector<std::uint64_t> note_finished();
  void read_lanes();
  void read_lane(Lane& lane, const Lane::Moment& moment, bool count_only);
  void submit();
  void take_reports();
  void apply_outcomes();
  void append_progress(bool all);
  bool append_lane(Lane& lane);
  Lane* lane(std::int32_t number);
  claim::Batch* batch_of(std::uint64_t ticket);

  // worker.cpp
  void note_completed(std::uint32_t wanted);
  void tell_maintenance();
  void give_back_memory();
  [[nodiscard]] bool has_room(const Lane& lane) const;
  [[nodiscard]] claim::Budget budget() const;
  [[nodiscard]] bool may_read() const;
  [[nodiscard]] Clock::time_point next_read() const;
  [[nodiscard]] bool told() const;
  [[nodiscard]] bool idle() const;

  // show.cpp
  void show_state();
  void show_failure(const char* text, std::int32_t only_lane = -1);
  void write_log();

  shared::Database* database_;
  int number_;
  shared::Worker* self_;
  Situation situation_;
  std::string shown_reason_;
  std::optional<shared::WorkerState> shown_state_;

  Oid extension_ = InvalidOid;
  segment::Group group_{};            // of the segments that are being published
  std::vector<claim::Leaf> leaves_;   // not drained
  std::vector<claim::Leaf> waiting_;  // of later layouts: until all of `leaves_` are drained
  std::int32_t newest_segment_ = 0;
  std::vector<std::int32_t> wanted_lanes_;  // of all layouts that are not drained, ascending
  std::string out_of_reach_;                // says so of lanes that nobody can publish; else empty
  std::vector<std::int32_t> layout_lanes_;  // of the one that is being published
  std::uint32_t workers_seen_ = 0;
  std::uint32_t progress_noted_;  // the newest Database::progress_wanted that is being fulfilled
  bool progress_told_ = true;     // maintenance knows of it
  std::vector<std::unique_ptr<Lane>> lanes_;
  bool claiming_ = false;  // a claim outlives the transaction that failed before its lane was made

  std::unique_ptr<publish::Publisher> publisher_;
  std::optional<publish::Settings> configured_;
  std::string configured_files_;
  std::string unconfigured_reason_;

  std::deque<std::unique_ptr<claim::Batch>> batches_;  // in the order of their tickets
  claim::SpareBatches spare_;
  std::size_t memory_used_ = 0;  // by what was read since memory was given back last
  std::size_t submitting_ = 0;   // index of the first batch that is not wholly submitted
  std::uint64_t next_ticket_ = 1;
  std::vector<publish::Outcome> outcomes_;

  bool want_read_ = true;
  bool starved_ = false;  // a lane had to let a snapshot pass by, as too many of its windows are under way
  Pace pace_;
  Clock::time_point reason_logged_{};
  Clock::time_point next_look_{};
  Clock::time_point retry_at_{};
  int failures_ = 0;
};

}  // namespace outbox::worker
