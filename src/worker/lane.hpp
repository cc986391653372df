// A lane in the hands of this worker: its windows, what of them is on the way to Kafka, and how far it has come.
// Owner: Worker. C++ code.
//
// Windows are opened one after another and sent without waiting for the one before: the idempotent producer keeps their
// order. Reports come in any order; the lane's cursor follows the longest run of records that have an outcome.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "claim/batch.hpp"
#include "claim/window.hpp"
#include "publish/publisher.hpp"
#include "receipt/progress.hpp"
#include "receipt/receipts.hpp"
#include "shared/shared.hpp"

namespace outbox::worker {

struct Load {
  std::size_t records = 0;
  std::size_t cost = 0;
};

class Lane {
 public:
  // `worker`: its number, from 1.
  Lane(std::int32_t number, receipt::Cursor cursor, shared::Lane* counters, std::uint32_t worker);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Reads on in the present window, or opens the next one up to `now`. In a transaction with `snapshot` registered, of
  // which `now` is the plain form. `finished` and `sync` are numbers that were read before the snapshot was taken.
  // Returns the batch read, or nullptr if nothing is there. With a budget of no messages it only counts. Throws ErrorInFlight and has then changed nothing.
  struct Moment {
    Snapshot snapshot;
    const claim::TransactionSnapshot& now;
    std::uint64_t finished;
    std::uint64_t sync;
    const std::vector<claim::Leaf>& leaves;
    const std::vector<claim::Leaf>&
        waiting;  // segments of later layouts: not to be read yet, but their messages are pending
    claim::SpareBatches& spare;
  };
  std::unique_ptr<claim::Batch> read(const Moment& moment, const claim::Budget& budget);
  // Whether read() would find something without a new snapshot.
  [[nodiscard]] bool has_unread() const;
  [[nodiscard]] bool can_open_window() const;
  // The next window is one that was under way when its last worker ended.
  [[nodiscard]] bool will_resume() const { return windows_.empty() && cursor_.window_end.has_value(); }

  // The batch is on its way: its records' outcomes will come.
  void expect(claim::Batch* batch);
  void take(claim::Batch& batch, const publish::Outcome& outcome);
  // Moves the cursor over what has an outcome. Batches that are finished are forgotten here.
  void advance();

  [[nodiscard]] bool has_progress() const { return moved_; }
  [[nodiscard]] receipt::Advance progress() const;
  void progress_appended(std::int64_t seq);
  // The completed snapshot is to be written although nothing was sent, so that a rolled segment can be seen drained.
  void note_completed() { moved_ = true; }

  [[nodiscard]] std::int32_t number() const { return number_; }
  [[nodiscard]] bool idle() const { return sent_.empty() && !has_unread(); }
  // Read and not yet taken into the cursor.
  [[nodiscard]] Load load() const;
  // Another worker is to have it: nothing more is read, and when nothing is on its way it can be given up.
  void leave(bool leaving) { leaving_ = leaving; }
  [[nodiscard]] bool leaving() const { return leaving_; }
  [[nodiscard]] bool left() const { return leaving_ && sent_.empty() && !moved_; }
  std::chrono::steady_clock::time_point last_append{};

 private:
  struct Window {
    std::uint32_t number = 0;
    claim::TransactionSnapshot upto;
    std::vector<claim::Leaf> leaves;
    std::vector<claim::Candidate> list;
    claim::WindowRanges ranges;
    std::size_t next = 0;         // first of `list` not handed out
    std::int64_t above = 0;       // every candidate up to this id was handed out
    std::uint64_t unread = 0;     // candidates not handed out, as counted in `unacknowledged`
    std::uint64_t unsettled = 0;  // records handed out and not yet taken into the cursor
    std::uint64_t sync = 0;
    [[nodiscard]] bool read_out() const { return unread == 0; }
  };

  [[nodiscard]] const claim::TransactionSnapshot& newest_end() const;
  std::int64_t walk(Window& window, const claim::TransactionSnapshot& from, const Moment& moment) const;
  void recount(std::int64_t more, std::uint64_t finished);
  void open_window(const Moment& moment);
  [[nodiscard]] std::uint64_t count_waiting(const Moment& moment) const;
  [[nodiscard]] std::uint64_t count(const std::vector<claim::Leaf>& leaves, const claim::TransactionSnapshot& from,
                                    const Moment& moment) const;
  std::unique_ptr<claim::Batch> read_window(Window& window, const Moment& moment, const claim::Budget& budget);
  void settle(const publish::Record& record, const claim::Origin& origin);
  void close_finished_windows();
  void show_oldest();
  void look_at_unread(const Moment& moment);

  std::int32_t number_;
  shared::Lane* counters_;
  receipt::Cursor cursor_;  // as far as there are outcomes; `seq` is that of the newest row in the progress log
  std::deque<Window> windows_;
  std::uint32_t next_window_ = 1;
  std::uint64_t counted_behind_ = 0;            // behind a resumed window, in `unacknowledged` already
  claim::TransactionSnapshot waiting_counted_;  // up to here what waits for its layout is in `unacknowledged`
  bool leaving_ = false;
  std::deque<claim::Batch*> sent_;
  receipt::Encoder receipts_;
  std::vector<receipt::Refused> refused_;
  std::unordered_map<std::int64_t, receipt::Refused> refused_ahead_;  // by id, until the cursor reaches them
  bool moved_ = false;
  std::int64_t oldest_unread_ = 0;
  std::uint64_t sync_reached_ = 0;
  std::uint64_t sync_told_ = 0;
};

}  // namespace outbox::worker
