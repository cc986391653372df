// The archive process: started by maintenance when something is due, ends when it is done. Whatever takes long or hangs is
// done here, so only this hangs. C++ code.
#include "segment/archive.hpp"

#include <vector>

#include "pg/lookup.hpp"
#include "settings.hpp"
#include "worker/life.hpp"
#include "worker/situation.hpp"
#include "worker/transaction.hpp"

extern "C" PGDLLEXPORT void outbox_archive_main(Datum argument);

namespace outbox::worker {

namespace {

using shared::WorkerState;

class Archive final : public Job {
 public:
  explicit Archive(const Place& place) : self_(place.slot) {}

  bool turn(bool woken) override;
  [[nodiscard]] long sleep_ms() const override { return 0; }
  // Maintenance starts another one, later and later.
  void back_off(const char*) override { failed_ = true; }
  [[nodiscard]] bool says(const char*) const override { return false; }

 private:
  void look();
  void keep(const segment::Entry& entry);
  void call_function(std::int32_t segment);
  void show(const char* what) const;

  shared::Worker* self_;
  bool failed_ = false;
  std::vector<segment::Entry> to_keep_;
  std::int32_t to_take_ = 0;
};

bool Archive::turn(bool) {
  if (failed_) return false;
  show("looking for what is due");
  look();
  for (const segment::Entry& entry : to_keep_) {
    try {
      keep(entry);
    } catch (const pg::ErrorInFlight&) {
      pg::recover();
    }
  }
  // One call a process: what a function of the users leaves behind in its session meets nothing of ours, and no other call.
  if (to_take_ != 0) call_function(to_take_);
  return false;
}

void Archive::look() {
  Transaction transaction(true);
  const Situation situation = situation_of(pg::call([] {
    Look found = look_at_catalogs();
    found.paused = false;
    return found;
  }));
  if (!situation.may_publish() || situation.extension_gone) return transaction.commit();
  const segment::Log log = pg::call([] { return segment::read_log(GetActiveSnapshot()); });
  const auto function = pg::call([] { return segment::read_archive_function(GetActiveSnapshot()); });
  const bool calls = function.registered && settings::archive_mode == settings::archive_function;
  const TransactionId horizon = pg::call([] { return segment::freeze_horizon(); });
  const TimestampTz now = GetCurrentTimestamp();
  for (int i = 0; i < log.count; i++) {
    const segment::Entry& entry = log.entries[i];
    if (entry.row.state != segment::State::drained) continue;
    if (!entry.kept && segment::can_be_frozen(entry, horizon)) to_keep_.push_back(entry);
    const TimestampTz due = segment::function_due_at(entry, function.registered_at);
    if (calls && to_take_ == 0 && due != 0 && due <= now && OidIsValid(entry.messages)) to_take_ = entry.row.segment;
  }
  transaction.commit();
}

void Archive::keep(const segment::Entry& entry) {
  char what[64];
  pg_snprintf(what, sizeof what, "freezing segment %d", entry.row.segment);
  show(what);
  for (const Oid table : {entry.messages, entry.progress})
    if (OidIsValid(table)) pg::call([table] { segment::freeze(table); });
  Transaction transaction(true);
  const bool done = pg::call([&entry] { return segment::is_frozen(entry) && segment::keep(entry.row.segment); });
  if (done)
    transaction.commit();
  else
    Transaction::abort();
}

void Archive::call_function(std::int32_t segment) {
  char what[64];
  pg_snprintf(what, sizeof what, "the archive function takes segment %d", segment);
  show(what);
  try {
    pg::call([segment] { segment::call_archive_function(segment); });
  } catch (const pg::ErrorInFlight&) {
    char why[512];
    pg::error_message(why, sizeof why, nullptr);
    pg::recover();
    Transaction transaction(true);
    pg::call([&] { segment::note_failure(segment, why); });
    transaction.commit();
  }
}

void Archive::show(const char* what) const {
  shared::set_worker_state(self_, WorkerState::running, what);
  pg::call([what] { pgstat_report_activity(STATE_RUNNING, what); });
}

// At the pace of autovacuum, not at that of a VACUUM that somebody waits for.
void work_gently() {
  const char* delay = GetConfigOption("autovacuum_vacuum_cost_delay", false, false);
  if (delay && strcmp(delay, "-1") != 0) SetConfigOption("vacuum_cost_delay", delay, PGC_SUSET, PGC_S_OVERRIDE);
}

}  // namespace
}  // namespace outbox::worker

void outbox_archive_main(Datum) {
  using namespace outbox;
  const worker::Place place = worker::begin();
  pqsignal(SIGINT, StatementCancelHandler);  // pg_cancel_backend() for a function that hangs
  // What a function has taken is taken.
  SetConfigOption("synchronous_commit", "local", PGC_SUSET, PGC_S_OVERRIDE);
  worker::work_gently();
  worker::live(place, [](const worker::Place& its) -> worker::Job* { return new worker::Archive(its); });
  proc_exit(0);
}
