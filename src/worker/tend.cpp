// What maintenance does to segments, each in a transaction of its own. Every lock that others may hold is only tried.
#include <algorithm>

#include "enqueue/message.hpp"
#include "pg/lookup.hpp"
#include "pg/text.hpp"
#include "receipt/progress.hpp"
#include "segment/archive.hpp"
#include "segment/drained.hpp"
#include "segment/drop.hpp"
#include "segment/roll.hpp"
#include "settings.hpp"
#include "worker/maintenance.hpp"
#include "worker/transaction.hpp"

namespace outbox::worker {

using namespace std::chrono_literals;
using segment::Entry;
using segment::State;

namespace {

constexpr std::chrono::seconds measure_interval{1};
constexpr std::chrono::seconds summary_interval{5};
constexpr std::chrono::milliseconds summary_beside_messages{250};  // some milliseconds of work each
constexpr std::chrono::seconds explanation_interval{2};

Retry::Clock::time_point clock_at(TimestampTz when) {
  return Retry::Clock::now() + std::chrono::microseconds(when - GetCurrentTimestamp());
}

bool function_mode() { return settings::archive_mode == settings::archive_function; }

}  // namespace

// ---- roll

const Entry* Maintenance::open() const {
  const auto found = std::ranges::find_if(entries_, [this](const Entry& entry) {
    return entry.row.state == State::open && entry.row.generation == generation_;
  });
  return found == entries_.end() ? nullptr : &*found;
}

Maintenance::Clock::time_point Maintenance::old_at() const {
  const Entry* its = open();
  if (!its) return Clock::time_point::max();
  return clock_at(its->opened_at + std::int64_t{settings::segment_max_age} * USECS_PER_SEC);
}

void Maintenance::roll_if_due() {
  const Entry* its = open();
  if (!its) return;
  const std::int32_t number = its->row.segment;
  if (measure_ && next_measure_ <= Clock::now()) {
    next_measure_ = Clock::now() + measure_interval;
    Transaction transaction(false);
    const segment::Size size = pg::call([its] { return segment::measure(its->messages); });
    transaction.commit();
    measure_ = !size.known;
    open_is_empty_ = size.empty;
    open_is_large_ = size.bytes >= std::int64_t{settings::segment_max_size} * 1024;
  }
  if (!open_is_empty_ && (open_is_large_ || old_at() <= Clock::now()) && roll_.due()) roll(number);
}

void Maintenance::roll(std::int32_t number) {
  roll_.later();
  Transaction transaction(true);
  const bool done = pg::call([number] { return segment::roll(number); });
  roll_blocked_ = done ? 0 : number;
  if (!done) return Transaction::abort();
  transaction.commit();
  control_changed = true;
}

// ---- drained

bool Maintenance::is_rolled(const Entry& entry, bool quiet) const {
  return entry.row.state == State::rolled && entry.row.generation == generation_ && (entry.moment != 0) == quiet;
}

bool Maintenance::any_rolled(bool quiet) const {
  return std::ranges::any_of(entries_, [=, this](const Entry& entry) { return is_rolled(entry, quiet); });
}

void Maintenance::mark_quiet() {
  quiet_.later();
  // So much can be seen without a transaction.
  const auto is_left = [this](const Entry& entry) {
    return is_rolled(entry, false) && !pg::call([&entry] { return segment::has_writers(entry.messages); });
  };
  if (std::ranges::none_of(entries_, is_left)) return;
  Transaction transaction(true);
  if (!pg::call([] { return segment::lock_log(); })) return Transaction::abort();
  const segment::Log log = pg::call([] {
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    const segment::Log present = segment::read_log(snapshot);
    UnregisterSnapshot(snapshot);
    return present;
  });
  for (int i = 0; i < log.count; i++)
    if (is_left(log.entries[i])) segment::note_quiet(log.entries[i]);
  transaction.commit();
  control_changed = true;
  ask_.at_once();
  shared::ask_for_progress(database_);
}

void Maintenance::mark_drained() {
  drained_.later();
  Transaction transaction(true);
  if (!pg::call([] { return segment::lock_log(); })) return Transaction::abort();
  Snapshot snapshot = pg::call([] { return RegisterSnapshot(GetLatestSnapshot()); });
  const segment::Log log = pg::call([snapshot] { return segment::read_log(snapshot); });
  bool behind = false;
  for (int i = 0; i < log.count; i++) {
    const Entry& entry = log.entries[i];
    if (!is_rolled(entry, true)) continue;
    if (segment::is_published(entry, log, snapshot))
      pg::call([&entry] { segment::add_event(entry.row.segment, "drained", 0, nullptr); });
    else
      behind = true;
  }
  pg::call([snapshot] { UnregisterSnapshot(snapshot); });
  transaction.commit();
  // A lane that is behind for long must not make the others write progress all the time.
  if (!behind || !ask_.due()) return;
  ask_.later();
  shared::ask_for_progress(database_);
}

// ---- drop

// The last segment of a layout, while there are earlier ones: what of them was published late has its receipt there.
bool Maintenance::ends_its_layout(const Entry& entry) const {
  bool earlier = false;
  for (const Entry& other : entries_) {
    if (!(other.row.group() == entry.row.group()) || other.row.segment == entry.row.segment) continue;
    if (other.row.segment > entry.row.segment) return false;
    earlier = true;
  }
  return earlier;
}

std::optional<TimestampTz> Maintenance::expiry(const Entry& entry) const {
  if (settings::retention < 0 || entry.row.state != State::drained) return std::nullopt;
  // What a function is to take stays until it has.
  if (function_mode() && !entry.taken && OidIsValid(entry.messages)) return std::nullopt;
  // What is handed over is as small as it gets.
  if (settings::archive_mode == settings::archive_detach && !entry.kept && OidIsValid(entry.messages))
    return std::nullopt;
  if (ends_its_layout(entry)) return std::nullopt;
  return entry.drained_at + std::int64_t{settings::retention} * USECS_PER_SEC;
}

Maintenance::Clock::time_point Maintenance::next_expiry() const {
  std::optional<TimestampTz> next;
  for (const Entry& entry : entries_)
    if (const auto its = expiry(entry)) next = std::min(*its, next.value_or(*its));
  return next ? clock_at(*next) : Clock::time_point::max();
}

void Maintenance::drop_expired() {
  const bool any = next_expiry() <= Clock::now();
  if (any && !drop_.due()) return;
  drop_blocked_ = 0;
  error_.clear();
  if (!any) return;
  const TimestampTz now = GetCurrentTimestamp();
  for (const Entry& entry : entries_) {
    const auto its = expiry(entry);
    if (!its || *its > now) continue;
    if (!drop(entry)) break;
  }
  if (drop_blocked_ == 0 && error_.empty())
    drop_.at_once();
  else
    drop_.later();
}

// The server's caches keep for ever that names and statistics of tables which are gone are not there: some kB a segment.
void Maintenance::forget_catalogs() {
  constexpr int worth_it = 32;
  if (++dropped_ < worth_it) return;
  dropped_ = 0;
  Transaction transaction(false);
  pg::call([] { InvalidateSystemCaches(); });
  transaction.commit();
}

// False: the others will not do better.
bool Maintenance::drop(const Entry& entry) {
  const std::int32_t number = entry.row.segment;
  try {
    Transaction transaction(true);
    const segment::Dropped result = segment::drop(number, settings::archive_mode == settings::archive_detach);
    if (result == segment::Dropped::yes) {
      transaction.commit();
      control_changed = true;
      forget_catalogs();
      return true;
    }
    Transaction::abort();
    if (drop_blocked_ == 0) drop_blocked_ = number;
    if (result == segment::Dropped::behind)
      error_ = "the progress log does not say that segment " + std::to_string(number) + " is published";
    return result != segment::Dropped::parents_locked;
  } catch (const pg::ErrorInFlight&) {
    char why[512];
    pg::error_message(why, sizeof why, nullptr);
    const std::string text = "segment " + std::to_string(number) + " cannot be dropped: " + why;
    pg::recover(reason_ != text);
    error_ = text;
    return true;
  }
}

void Maintenance::forget_gone() {
  Transaction transaction(true);
  const segment::Log log = pg::call([] { return segment::read_log(GetActiveSnapshot()); });
  if (log.gone_count > 0) pg::call([&log] { segment::forget(log); });
  gone_ = log.gone_in_all > log.gone_count;
  transaction.commit();
  if (log.gone_count > 0) forget_.at_once();
  forget_.later();
}

// ---- archive

// 0: none.
std::int32_t Maintenance::first_to_keep() const {
  const auto found = std::ranges::find_if(entries_, [](const Entry& entry) {
    return entry.row.state == State::drained && !entry.kept && OidIsValid(entry.messages);
  });
  return found == entries_.end() ? 0 : found->row.segment;
}

bool Maintenance::function_wanted() const {
  return function_mode() && std::ranges::any_of(entries_, [](const Entry& entry) {
           return entry.row.state == State::drained && !entry.taken && OidIsValid(entry.messages);
         });
}

Maintenance::Clock::time_point Maintenance::next_function_call() const {
  if (!function_mode() || function_registered_at_ == 0) return Clock::time_point::max();
  TimestampTz next = 0;
  for (const Entry& entry : entries_) {
    if (entry.row.state != State::drained || !OidIsValid(entry.messages)) continue;
    const TimestampTz due = segment::function_due_at(entry, function_registered_at_);
    if (due != 0 && (next == 0 || due < next)) next = due;
  }
  return next == 0 ? Clock::time_point::max() : clock_at(next);
}

bool Maintenance::archive_is_running() const {
  return archive_ || pg_atomic_read_u32(&shared::worker_at(database_, shared::archive_index())->pid) != 0;
}

void Maintenance::start_archive() {
  if (archive_ && !is_running(archive_)) {
    pfree(archive_);
    archive_ = nullptr;
    keep_tried_ = true;
  }
  const bool function_due = next_function_call() <= Clock::now();
  if (!any_to_keep() && !function_due) archive_blocked_ = false;
  if ((!any_to_keep() && !function_due) || archive_is_running() || !archive_start_.due()) return;
  archive_start_.later();
  archive_blocked_ = false;
  if (!function_due) {
    Transaction transaction(false);
    const TransactionId horizon = pg::call([] { return segment::freeze_horizon(); });
    transaction.commit();
    if (std::ranges::none_of(entries_, [horizon](const Entry& entry) {
          return entry.row.state == State::drained && !entry.kept && segment::can_be_frozen(entry, horizon);
        }))
      return;
  }
  const auto no_room_until = static_cast<TimestampTz>(pg_atomic_read_u64(&shared::get()->no_room_until));
  if (no_room_until <= GetCurrentTimestamp())
    archive_ = start_process({.function = "outbox_archive_main",
                              .type = archive_type,
                              .database = MyDatabaseId,
                              .slot = given().slot,
                              .process = shared::archive_index()});
  archive_blocked_ = !archive_;
}

// ---- indexes

// By which a message is found by its id.
void Maintenance::summarize() {
  bool all = true;
  for (const Entry& entry : entries_) {
    if (entry.kept || entry.row.generation != generation_) continue;
    Transaction transaction(true);
    all &= upkeep_.summarize(entry.messages, {enqueue::Column::id});
    all &= upkeep_.summarize(entry.progress, {receipt::first_id_column, receipt::last_id_column});
    transaction.commit();
    if (!all) break;
  }
  summary_wanted_ = !all;
  next_summary_ = Clock::now();
  if (all)
    next_summary_ += summary_interval;
  else if (pg_atomic_read_u32(&self_->told) != 0)  // messages come first
    next_summary_ += summary_beside_messages;
}

// ---- what outbox.workers says

std::string Maintenance::waits_of(std::int32_t number) const {
  char text[400] = "";
  Transaction transaction(true);
  pg::call([number, &text] {
    Oid type = INT4OID;
    Datum value = Int32GetDatum(number);
    if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
    if (SPI_execute_with_args(
            "SELECT w.waits_for FROM outbox._segment_waits() w WHERE w.segment OPERATOR(pg_catalog.=) $1", 1, &type,
            &value, nullptr, true, 1) != SPI_OK_SELECT)
      elog(ERROR, "could not read what segment %d waits for", number);
    char* found = SPI_processed == 1 ? SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1) : nullptr;
    if (found) pg::copy_text(text, found, sizeof text);
    SPI_finish();
  });
  transaction.commit();
  return text;
}

void Maintenance::explain_wait(std::int32_t number) {
  explain_again_ = next_explanation_ > Clock::now();
  if (explain_again_) return;
  next_explanation_ = Clock::now() + explanation_interval;
  const std::string waits = waits_of(number);
  reason_ = waits.empty() ? "" : "segment " + std::to_string(number) + " waits for " + waits;
}

// The next attempt may be a minute away: whoever is in the way is watched meanwhile.
void Maintenance::explain_keep(std::int32_t number) {
  const bool held = !reason_.empty();
  explain_wait(number);
  if (held && reason_.empty()) archive_start_.at_once();
  explain_again_ |= !reason_.empty();
}

void Maintenance::explain() {
  const auto failing = std::ranges::find_if(entries_, [this](const Entry& entry) {
    return entry.row.state == State::drained && !entry.taken && entry.failures > 0 &&
           entry.failed_at >= function_registered_at_;
  });
  const bool fails = function_mode() && failing != entries_.end();
  const bool unset = function_wanted() && function_registered_at_ == 0;
  in_trouble_ = !error_.empty() || fails || unset;
  explain_again_ = false;
  if (!error_.empty()) {
    reason_ = error_;
  } else if (unset) {
    reason_ = "outbox.archive_mode is function and there is none: SELECT outbox.set_archive_function(…)";
  } else if (fails || drop_blocked_ != 0) {
    explain_wait(fails ? failing->row.segment : drop_blocked_);
  } else if (archive_blocked_) {
    in_trouble_ = true;
    reason_ = std::string("the archive process cannot start: ") + no_process_slot;
  } else if (keep_tried_ && any_to_keep()) {
    explain_keep(first_to_keep());
  } else if (roll_blocked_ != 0) {
    reason_ = "segment " + std::to_string(roll_blocked_) + " cannot be closed: somebody has locked the log";
  } else {
    reason_.clear();
  }
}

}  // namespace outbox::worker
