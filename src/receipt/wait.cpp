// Waiting for Kafka in a client's session: outbox.wait_published() and outbox.drain(). Mostly C++ code.
#include "pg/error.hpp"
#include "receipt/state.hpp"
#include "shared/shared.hpp"

namespace outbox::receipt {

namespace {

struct Deadline {
  bool never;
  TimestampTz at = 0;

  explicit Deadline(FunctionCallInfo fcinfo, int argument) : never(PG_ARGISNULL(argument)) {
    if (never) return;
    at = pg::call([&] {
      return DatumGetTimestampTz(DirectFunctionCall2(
          timestamptz_pl_interval, TimestampTzGetDatum(GetCurrentTimestamp()), PG_GETARG_DATUM(argument)));
    });
  }
  [[nodiscard]] bool passed() const { return !never && GetCurrentTimestamp() >= at; }
  // Now and then the condition is looked at although nobody said it changed.
  [[nodiscard]] long sleep_ms() const {
    constexpr long longest = 500;
    if (never) return longest;
    return std::clamp(TimestampDifferenceMilliseconds(GetCurrentTimestamp(), at), 1L, longest);
  }
};

// Just after a start the launcher may not have come to this database yet.
shared::Database* require_worker(const Deadline& deadline) {
  shared::Database* database = shared::find(MyDatabaseId);
  while (!database && shared::get() && !deadline.passed()) {
    pg::call([] {
      constexpr long pause_ms = 50;
      (void)WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, pause_ms, PG_WAIT_EXTENSION);
      ResetLatch(MyLatch);
      CHECK_FOR_INTERRUPTS();
    });
    database = shared::find(MyDatabaseId);
  }
  if (!database)
    pg::call([] {
      ereport(ERROR,
              (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE), errmsg("nothing publishes messages of this database"),
               errdetail("There is no outbox worker to wait for."), errhint("See outbox.workers.")));
    });
  return database;
}

// Sleeps until `reached` holds or the time is over.
template <class Condition>
bool wait_until(shared::Database* database, const Deadline& deadline, Condition reached) {
  bool done = false;
  pg::call([database] { ConditionVariablePrepareToSleep(&database->moved); });
  while (!(done = reached()) && !deadline.passed())
    pg::call([&] { (void)ConditionVariableTimedSleep(&database->moved, deadline.sleep_ms(), PG_WAIT_EXTENSION); });
  pg::call([] { (void)ConditionVariableCancelSleep(); });
  return done;
}

struct Place {
  bool found = false;
  int32 segment = 0;
  int64 id = 0;
  int32 lane = 0;
  uint64 xid = 0;
};

// Server code.
Place find_place(Datum message_id) {
  Place place;
  if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
  Oid type = UUIDOID;
  if (SPI_execute_with_args("SELECT f.found_segment, f.found_id, f.found_lane, f.found_xid FROM outbox._find_id($1) f",
                            1, &type, &message_id, nullptr, false, 1) != SPI_OK_SELECT)
    elog(ERROR, "could not look the message up");
  bool null = true;
  if (SPI_processed == 1) {
    HeapTuple row = SPI_tuptable->vals[0];
    TupleDesc desc = SPI_tuptable->tupdesc;
    place.segment = DatumGetInt32(SPI_getbinval(row, desc, 1, &null));
    place.found = !null;
    if (place.found) {
      place.id = DatumGetInt64(SPI_getbinval(row, desc, 2, &null));
      place.lane = DatumGetInt32(SPI_getbinval(row, desc, 3, &null));
      place.xid = DatumGetUInt64(SPI_getbinval(row, desc, 4, &null));
    }
  }
  SPI_finish();
  return place;
}

// Server code.
void refuse_dead(Datum message_id) {
  if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
  Oid type = UUIDOID;
  PushActiveSnapshot(GetLatestSnapshot());
  if (SPI_execute_with_args(
          "SELECT d.reason FROM outbox._dead_letter d WHERE d.message_id = $1 AND d.replayed = '' AND "
          "d.resent_at IS NULL",
          1, &type, &message_id, nullptr, true, 1) != SPI_OK_SELECT)
    elog(ERROR, "could not read the dead letters");
  PopActiveSnapshot();
  if (SPI_processed == 1)
    ereport(ERROR,
            (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
             errmsg("message \"%s\" is a dead letter", DatumGetCString(DirectFunctionCall1(uuid_out, message_id))),
             errdetail("%s", SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1)),
             errhint("See outbox.dead_letters; outbox.resend() sends it again.")));
  SPI_finish();
}

Place require_place(Datum message_id) {
  const Place place = pg::call([message_id] { return find_place(message_id); });
  pg::call([&] {
    if (!place.found)
      ereport(
          ERROR,
          (errcode(ERRCODE_NO_DATA_FOUND),
           errmsg("there is no message \"%s\"", DatumGetCString(DirectFunctionCall1(uuid_out, message_id))),
           errdetail("Its transaction is not committed, was rolled back, or the message is older than what is kept."),
           errhint("Wait after the COMMIT.")));
    if (place.xid == U64FromFullTransactionId(GetTopFullTransactionIdIfAny()))
      ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                      errmsg("message \"%s\" was enqueued by the current transaction",
                             DatumGetCString(DirectFunctionCall1(uuid_out, message_id))),
                      errdetail("It is published after the commit."), errhint("Wait after the COMMIT.")));
  });
  return place;
}

bool is_published(const Place& place) {
  Snapshot snapshot = pg::call([] { return RegisterSnapshot(GetLatestSnapshot()); });
  const bool published =
      Progress(snapshot).state(place.segment, place.lane, place.xid, place.id) == Progress::State::published;
  pg::call([snapshot] { UnregisterSnapshot(snapshot); });
  return published;
}

Datum wait_published(PG_FUNCTION_ARGS) {
  if (PG_ARGISNULL(0)) PG_RETURN_NULL();
  Datum message_id = PG_GETARG_DATUM(0);
  const Deadline deadline(fcinfo, 1);
  Place place = require_place(message_id);
  if (!is_published(place)) {
    const bool done = wait_until(require_worker(deadline), deadline, [&] {
      // outbox.adopt() moves what is unpublished to another row.
      if (place.lane < 0) place = require_place(message_id);
      return is_published(place);
    });
    if (!done) PG_RETURN_BOOL(false);
  }
  pg::call([message_id] { refuse_dead(message_id); });
  PG_RETURN_BOOL(true);
}

Datum drain(PG_FUNCTION_ARGS) {
  const Deadline deadline(fcinfo, 0);
  shared::Database* database = require_worker(deadline);
  // The worker takes a snapshot after it has read this number, and says so when everything in the snapshot is done.
  const uint64 wanted = pg_atomic_add_fetch_u64(&database->requested_sync, 1);
  pg::call([database] { shared::wake_worker(database); });
  const bool done = wait_until(database, deadline, [&] {
    Snapshot snapshot = pg::call([] { return RegisterSnapshot(GetLatestSnapshot()); });
    const std::vector<std::int32_t> lanes = read_lanes_in_use(snapshot);
    pg::call([snapshot] { UnregisterSnapshot(snapshot); });
    if (lanes.empty()) return pg_atomic_read_u64(&database->completed_sync) >= wanted;
    return std::all_of(lanes.begin(), lanes.end(), [&](std::int32_t lane) {
      return lane < shared::get()->lanes_each &&
             pg_atomic_read_u64(&shared::lane_at(database, lane)->completed_sync) >= wanted;
    });
  });
  PG_RETURN_BOOL(done);
}

}  // namespace
}  // namespace outbox::receipt

OUTBOX_FUNCTION(outbox_wait_published, outbox::receipt::wait_published);
OUTBOX_FUNCTION(outbox_drain, outbox::receipt::drain);
