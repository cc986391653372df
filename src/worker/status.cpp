// What operators read and call: outbox.workers, outbox.lanes, outbox.version(), … Server code unless said.
#include "enqueue/message.hpp"
#include "pg/error.hpp"
#include "pg/lookup.hpp"
#include "publish/options.hpp"
#include "settings.hpp"
#include "shared/shared.hpp"
#include "version.hpp"
#include "worker/process.hpp"

namespace outbox::worker {

namespace {

ReturnSetInfo* begin_set(FunctionCallInfo fcinfo) {
  pg::begin_result_set(fcinfo);
  return reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
}

// `number` 0: a process of which there is one.
void add_process(ReturnSetInfo* result, const char* process, int number, int pid, const char* state, const char* reason,
                 TimestampTz since, Datum lanes) {
  Datum values[] = {CStringGetTextDatum(process),
                    Int32GetDatum(number),
                    Int32GetDatum(pid),
                    CStringGetTextDatum(state),
                    CStringGetTextDatum(reason),
                    TimestampTzGetDatum(since),
                    lanes};
  bool nulls[] = {false, number == 0, pid == 0, false, reason[0] == '\0', since == 0, lanes == 0};
  tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

Datum lanes_of(shared::Database* database, int pid) {
  auto* lanes = static_cast<Datum*>(palloc(sizeof(Datum) * shared::get()->lanes_each));
  int count = 0;
  for (int i = 0; i < shared::get()->lanes_each; i++)
    if (pid != 0 && pg_atomic_read_u32(&shared::lane_at(database, i)->worker_pid) == static_cast<uint32>(pid))
      lanes[count++] = Int32GetDatum(i);
  return PointerGetDatum(construct_array(lanes, count, INT4OID, sizeof(int32), true, TYPALIGN_INT));
}

const char* const no_launcher =
    "the outbox launcher is not running: raise max_worker_processes and restart the server, or see the server log";

const char* why_no_worker() {
  if (!shared::get())
    return "the library is not loaded at server start: add outbox to shared_preload_libraries and restart the server";
  if (RecoveryInProgress()) return "the server is a standby: the worker starts after promotion";
  if (pg_atomic_read_u32(&shared::get()->launcher_pid) == 0) return no_launcher;
  if (pg::is_template_database(MyDatabaseId)) return "this is a template database: templates publish nothing";
  for (int i = 0; i < shared::get()->databases; i++)
    if (pg_atomic_read_u32(&shared::database_at(i)->oid) == InvalidOid)
      return "the launcher has not found this database yet";
  return "all slots are in use: raise outbox.max_databases and restart the server";
}

const char* type_of(int process) {
  if (process < shared::workers_each()) return worker_type;
  return process == shared::maintenance_index() ? maintenance_type : archive_type;
}

// Whether there should be one all the time.
bool is_expected(int process) {
  return process < settings::workers_per_database ? process < shared::workers_each()
                                                  : process == shared::maintenance_index();
}

void show_process(ReturnSetInfo* result, shared::Database* database, int process) {
  shared::Worker* worker = shared::worker_at(database, process);
  char reason[sizeof worker->reason];
  LWLockAcquire(shared::get()->lock, LW_SHARED);
  const auto pid = static_cast<int>(pg_atomic_read_u32(&worker->pid));
  const shared::WorkerState state = worker->state;
  const TimestampTz since = worker->since;
  strlcpy(reason, worker->reason, sizeof reason);
  LWLockRelease(shared::get()->lock);
  if (pid == 0 && !is_expected(process)) return;
  if (pid == 0 && pg_atomic_read_u32(&shared::get()->launcher_pid) == 0) strlcpy(reason, no_launcher, sizeof reason);
  const bool publishes = process < shared::workers_each();
  add_process(result, type_of(process), publishes ? process + 1 : 0, pid, shared::state_name(state), reason, since,
              publishes ? lanes_of(database, pid) : 0);
}

Datum workers(PG_FUNCTION_ARGS) {
  ReturnSetInfo* result = begin_set(fcinfo);
  if (shared::Database* database = shared::find(MyDatabaseId)) {
    for (int process = 0; process < shared::processes_each(); process++) show_process(result, database, process);
    PG_RETURN_NULL();
  }
  const char* state = shared::state_name(shared::WorkerState::not_running);
  add_process(result, worker_type, 1, 0, state, why_no_worker(), 0, 0);
  add_process(result, maintenance_type, 0, 0, state, why_no_worker(), 0, 0);
  PG_RETURN_NULL();
}

Datum timestamp_or_null(uint64 value, bool* null) {
  *null = value == 0;
  return TimestampTzGetDatum(static_cast<TimestampTz>(value));
}

void add_lane(ReturnSetInfo* result, shared::Database* database, int number) {
  shared::Lane* lane = shared::lane_at(database, number);
  char error[sizeof lane->last_error];
  LWLockAcquire(shared::get()->lock, LW_SHARED);
  const TimestampTz error_since = lane->last_error_since;
  strlcpy(error, lane->last_error, sizeof error);
  LWLockRelease(shared::get()->lock);

  // `seen` first: it only grows, and what it leaves out is in the other two.
  const bool counted = pg_atomic_read_u32(&lane->counted) != 0;
  const auto seen = static_cast<int64>(pg_atomic_read_u64(&lane->seen));
  pg_read_barrier();
  const auto unacknowledged = static_cast<int64>(pg_atomic_read_u64(&lane->unacknowledged));
  const auto started = static_cast<int64>(pg_atomic_read_u64(&lane->started));
  const int64 pending = Max(unacknowledged + started - seen, 0);
  const uint64 waiting = pg_atomic_read_u64(&lane->first_waiting);
  pg_read_barrier();
  const uint64 oldest = pg_atomic_read_u64(&lane->oldest);

  Datum values[11];
  bool nulls[11] = {};
  values[0] = Int32GetDatum(number);
  values[1] = Int64GetDatum(pending);
  nulls[1] = !counted;
  values[2] = timestamp_or_null(pending == 0 ? 0 : oldest != 0 ? oldest : waiting, &nulls[2]);
  values[3] = Int64GetDatum(static_cast<int64>(pg_atomic_read_u64(&lane->published)));
  values[4] = Int64GetDatum(static_cast<int64>(pg_atomic_read_u64(&lane->bytes)));
  values[5] = Int64GetDatum(static_cast<int64>(pg_atomic_read_u64(&lane->failures)));
  values[6] = timestamp_or_null(pg_atomic_read_u64(&database->counted_since), &nulls[6]);
  values[7] = timestamp_or_null(pg_atomic_read_u64(&lane->last_published_at), &nulls[7]);
  values[8] = CStringGetTextDatum(error);
  nulls[8] = error[0] == '\0';
  values[9] = timestamp_or_null(static_cast<uint64>(error_since), &nulls[9]);
  const auto pid = static_cast<int>(pg_atomic_read_u32(&lane->worker_pid));
  values[10] = Int32GetDatum(pid);
  nulls[10] = pid == 0;
  tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

Datum lane_counters(PG_FUNCTION_ARGS) {
  ReturnSetInfo* result = begin_set(fcinfo);
  shared::Database* database = shared::find(MyDatabaseId);
  if (database)
    for (int i = 0; i < shared::get()->lanes_each; i++) {
      shared::Lane* lane = shared::lane_at(database, i);
      if (pg_atomic_read_u32(&lane->worker_pid) != 0 || pg_atomic_read_u64(&lane->started) != 0)
        add_lane(result, database, i);
    }
  PG_RETURN_NULL();
}

Datum reset_counters(PG_FUNCTION_ARGS) {
  (void)fcinfo;
  shared::Database* database = shared::find(MyDatabaseId);
  if (!database) PG_RETURN_VOID();
  LWLockAcquire(shared::get()->lock, LW_EXCLUSIVE);
  for (int i = 0; i < shared::get()->lanes_each; i++) {
    shared::Lane* lane = shared::lane_at(database, i);
    pg_atomic_write_u64(&lane->published, 0);
    pg_atomic_write_u64(&lane->bytes, 0);
    pg_atomic_write_u64(&lane->failures, 0);
    lane->last_error[0] = '\0';
    lane->last_error_since = 0;
  }
  pg_atomic_write_u64(&database->counted_since, static_cast<uint64>(GetCurrentTimestamp()));
  LWLockRelease(shared::get()->lock);
  PG_RETURN_VOID();
}

Datum default_server(PG_FUNCTION_ARGS) {
  (void)fcinfo;
  PG_RETURN_TEXT_P(cstring_to_text(settings::server));
}

Datum announce(PG_FUNCTION_ARGS) {
  if (!CALLED_AS_TRIGGER(fcinfo))
    ereport(ERROR,
            (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED), errmsg("outbox._announce() is a trigger function")));
  Relation table = reinterpret_cast<TriggerData*>(fcinfo->context)->tg_relation;
  // Which segment is open does not change by what becomes of the others; a roll writes to outbox._segment as well.
  if (RelationGetRelid(table) == pg::relation_oid("_segment_event"))
    CacheInvalidateRelcache(table);
  else
    enqueue::forget_open_segment();
  enqueue::wake_at_commit();
  return PointerGetDatum(nullptr);
}

// C++ code.
Datum version(PG_FUNCTION_ARGS) {
  const std::string kafka = publish::library_version();
  const char* kafka_text = kafka.c_str();
  return pg::call([=] {
    TupleDesc desc;
    if (get_call_result_type(fcinfo, nullptr, &desc) != TYPEFUNC_COMPOSITE)
      elog(ERROR, "return type must be a row type");
    const char* server = GetConfigOption("server_version", false, false);
    Datum values[] = {CStringGetTextDatum(library_version), CStringGetTextDatum(server),
                      CStringGetTextDatum(kafka_text)};
    bool nulls[] = {false, false, false};
    return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
  });
}

}  // namespace
}  // namespace outbox::worker

OUTBOX_SERVER_FUNCTION(outbox_workers, outbox::worker::workers);
OUTBOX_SERVER_FUNCTION(outbox_lane_counters, outbox::worker::lane_counters);
OUTBOX_SERVER_FUNCTION(outbox_reset_counters, outbox::worker::reset_counters);
OUTBOX_SERVER_FUNCTION(outbox_default_server, outbox::worker::default_server);
OUTBOX_SERVER_FUNCTION(outbox_announce, outbox::worker::announce);
OUTBOX_FUNCTION(outbox_version, outbox::worker::version);
