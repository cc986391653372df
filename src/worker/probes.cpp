#include "worker/probes.hpp"

#include <algorithm>

#include "pg/error.hpp"
#include "shared/shared.hpp"

namespace outbox::worker {

void Probes::know(const std::vector<Oid>& databases) {
  const auto gone = [&](Oid oid) { return std::find(databases.begin(), databases.end(), oid) == databases.end(); };
  std::erase_if(done_, gone);
  std::erase_if(waiting_, [&](const Waiting& each) { return gone(each.database); });
  for (const Oid oid : databases) {
    const bool known = std::find(done_.begin(), done_.end(), oid) != done_.end() || find(oid) != waiting_.end();
    if (!known) waiting_.push_back({.database = oid});
  }
}

void Probes::turn() {
  if (is_running(probe_)) return;
  const TimestampTz now = GetCurrentTimestamp();
  if (probe_) ended(now);
  if (now < next_) return;
  const auto due =
      std::find_if(waiting_.begin(), waiting_.end(), [now](const Waiting& each) { return each.due <= now; });
  if (due == waiting_.end()) return;
  probing_ = due->database;
  pg_atomic_write_u32(&shared::get()->probed, InvalidOid);
  probe_ = start_process({.function = "outbox_probe_main", .type = "outbox probe", .database = probing_});
  starved_ = !probe_;
  if (!probe_) next_ = TimestampTzPlusMilliseconds(now, 5000);
}

TimestampTz Probes::wake_at(TimestampTz latest) const {
  if (is_running(probe_)) return latest;  // its end wakes us
  for (const Waiting& each : waiting_) latest = std::min(latest, std::max(each.due, next_));
  return latest;
}

// One that was ended before it had looked is repeated, later and later.
void Probes::ended(TimestampTz now) {
  constexpr long first_ms = 1000;
  constexpr long longest_ms = 600'000;
  pfree(probe_);
  probe_ = nullptr;
  const auto of = find(probing_);
  if (of == waiting_.end()) return;  // dropped meanwhile
  if (pg_atomic_read_u32(&shared::get()->probed) == probing_) {
    done_.push_back(probing_);
    waiting_.erase(of);
    return;
  }
  of->pause_ms = std::clamp(of->pause_ms * 2, first_ms, longest_ms);
  of->due = TimestampTzPlusMilliseconds(now, of->pause_ms);
}

std::vector<Probes::Waiting>::iterator Probes::find(Oid database) {
  return std::find_if(waiting_.begin(), waiting_.end(),
                      [database](const Waiting& each) { return each.database == database; });
}

}  // namespace outbox::worker
