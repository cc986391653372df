// outbox.backlog_limit: whether one more message may wait for Kafka. Server code.
//
// Judged from the shared counters: what is committed and not acknowledged in any lane, what waits for outbox.adopt(), and
// what this transaction has enqueued so far. Other open transactions are not seen. A session that is far from the limit does
// not look at each message: it may enqueue its share of what is left, for some milliseconds.
#include "enqueue/message.hpp"
#include "settings.hpp"
#include "shared/shared.hpp"

namespace outbox::enqueue {

namespace {

constexpr int look_again_ms = 10;
constexpr int64 most_without_look = 1000;
constexpr int warn_again_ms = 10'000;

struct Allowance {
  int64 messages = 0;
  TimestampTz until = 0;
  int limit = 0;  // of which it is a share
  int action = 0;
};
Allowance allowance;

bool is_allowed(TimestampTz now) {
  if (allowance.messages <= 0 || now >= allowance.until || allowance.limit != settings::backlog_limit ||
      allowance.action != settings::backlog_limit_action)
    return false;
  allowance.messages--;
  return true;
}

void allow(int64 messages, TimestampTz now) {
  allowance = {messages, TimestampTzPlusMilliseconds(now, look_again_ms), settings::backlog_limit,
               settings::backlog_limit_action};
}

// Nobody is refused because of a number that was read at a bad moment, so a doubtful one is read again.
shared::Backlog read_backlog(shared::Database* database, int64 own) {
  constexpr int most_tries = 50;
  constexpr long pause_us = 100;
  for (int i = 0;; i++) {
    shared::Backlog backlog = shared::backlog_of(database);
    if (backlog.exact || backlog.messages + own < settings::backlog_limit) return backlog;
    if (i == most_tries) {
      backlog.messages = 0;
      return backlog;
    }
    CHECK_FOR_INTERRUPTS();
    pg_usleep(pause_us);
  }
}

const char* detail(const shared::Backlog& backlog, int64 own, TimestampTz now) {
  StringInfoData text;
  initStringInfo(&text);
  appendStringInfo(&text, "%lld messages of this database wait for Kafka", (long long)backlog.messages);
  if (backlog.oldest != 0) {
    const int64 waits = Max(now - backlog.oldest, 0) / USECS_PER_SEC * USECS_PER_SEC;
    const Datum rounded = DirectFunctionCall2(timestamp_mi, TimestampGetDatum(waits), TimestampGetDatum(0));
    appendStringInfo(&text, ", the oldest for %s", DatumGetCString(DirectFunctionCall1(interval_out, rounded)));
  }
  if (own > 0) appendStringInfo(&text, "; this transaction has enqueued %lld more", (long long)own);
  appendStringInfo(&text, ". outbox.backlog_limit is %d.", settings::backlog_limit);
  return text.data;
}

void refuse(const shared::Backlog& backlog, int64 own, TimestampTz now) {
  ereport(ERROR, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
                  errmsg("the message cannot be enqueued: too many messages wait for Kafka"),
                  errdetail("%s", detail(backlog, own, now)),
                  errhint("outbox.workers tells why they wait. Or raise outbox.backlog_limit, or set "
                          "outbox.backlog_limit_action = warn.")));
}

// At most once in a while for the whole database.
void warn_sometimes(shared::Database* database, const shared::Backlog& backlog, int64 own, TimestampTz now) {
  uint64 last = pg_atomic_read_u64(&database->backlog_warned_at);
  if (last != 0 && !TimestampDifferenceExceeds(static_cast<TimestampTz>(last), now, warn_again_ms)) return;
  if (!pg_atomic_compare_exchange_u64(&database->backlog_warned_at, &last, static_cast<uint64>(now))) return;
  ereport(WARNING, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED), errmsg("too many messages wait for Kafka"),
                    errdetail("%s", detail(backlog, own, now)),
                    errhint("outbox.workers tells why they wait. They fill the disk meanwhile.")));
}

}  // namespace

void check_backlog(Refusal refusal) {
  const TimestampTz now = GetCurrentTimestamp();
  if (is_allowed(now)) return;
  shared::Database* database = shared::find(MyDatabaseId);
  if (!database) return;
  const int64 own = enqueued_so_far();
  const shared::Backlog backlog = read_backlog(database, own);
  const int64 left = settings::backlog_limit - backlog.messages - own;
  if (left > 0) {
    allow(Min(left / MaxBackends, most_without_look), now);
    return;
  }
  if (settings::backlog_limit_action == settings::reject && refusal == Refusal::possible) refuse(backlog, own, now);
  warn_sometimes(database, backlog, own, now);
  if (settings::backlog_limit_action == settings::warn) allow(most_without_look, now);
}

}  // namespace outbox::enqueue
