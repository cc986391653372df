// What utility statements mean for our processes: a statement that changes what the worker reads wakes it at commit; one
// that needs a database for itself sends our processes away first. Server code.
#include "enqueue/message.hpp"
#include "pg/error.hpp"
#include "pg/lookup.hpp"
#include "segment/guard_change.hpp"
#include "segment/guard_drop.hpp"
#include "shared/shared.hpp"
#include "worker/process.hpp"

namespace outbox::worker {

namespace {

ProcessUtility_hook_type previous = nullptr;

// The database that a statement wants without other sessions; nullptr if none.
const char* wanted_alone(Node* statement) {
  switch (nodeTag(statement)) {
    case T_DropdbStmt:
      return reinterpret_cast<DropdbStmt*>(statement)->dbname;
    case T_RenameStmt: {
      auto* rename = reinterpret_cast<RenameStmt*>(statement);
      return rename->renameType == OBJECT_DATABASE ? rename->subname : nullptr;
    }
    case T_CreatedbStmt: {
      ListCell* cell;
      foreach (cell, reinterpret_cast<CreatedbStmt*>(statement)->options) {
        auto* option = lfirst_node(DefElem, cell);
        if (strcmp(option->defname, "template") == 0 && option->arg) return defGetString(option);
      }
      return "template1";
    }
    case T_AlterDatabaseStmt: {
      auto* alter = reinterpret_cast<AlterDatabaseStmt*>(statement);
      ListCell* cell;
      foreach (cell, alter->options)
        if (strcmp(lfirst_node(DefElem, cell)->defname, "tablespace") == 0) return alter->dbname;
      return nullptr;
    }
    default:
      return nullptr;
  }
}

bool changes_what_we_read(Node* statement) {
  switch (nodeTag(statement)) {
    case T_CreateExtensionStmt:
    case T_AlterExtensionStmt:
    case T_CreateForeignServerStmt:
    case T_AlterForeignServerStmt:
    case T_CreateUserMappingStmt:
    case T_AlterUserMappingStmt:
    case T_DropUserMappingStmt:
    case T_DropStmt:
    case T_DropOwnedStmt:
    case T_AlterOwnerStmt:
    case T_ReassignOwnedStmt:
      return true;
    case T_RenameStmt:
      return reinterpret_cast<RenameStmt*>(statement)->renameType == OBJECT_FOREIGN_SERVER;
    default:
      return false;
  }
}

bool touches_databases(Node* statement) {
  return IsA(statement, CreatedbStmt) || IsA(statement, AlterDatabaseStmt) || wanted_alone(statement);
}

bool may_create_databases() {
  if (superuser()) return true;
  HeapTuple role = SearchSysCache1(AUTHOID, ObjectIdGetDatum(GetUserId()));
  if (!HeapTupleIsValid(role)) return false;
  const bool may = reinterpret_cast<Form_pg_authid>(GETSTRUCT(role))->rolcreatedb;
  ReleaseSysCache(role);
  return may;
}

// The statement's own checks come after us; nobody may stop the worker with one that will fail.
bool will_be_allowed(Node* statement, Oid database) {
  if (!IsA(statement, RenameStmt) && IsTransactionBlock()) return false;
  const bool owner = pg::owns_database(database, GetUserId());
  if (IsA(statement, CreatedbStmt)) return may_create_databases() && (owner || pg::is_template_database(database));
  return owner;
}

bool is_drop(Node* statement) { return IsA(statement, DropStmt) || IsA(statement, DropOwnedStmt); }

bool is_commit_prepared(Node* statement) {
  return IsA(statement, TransactionStmt) &&
         reinterpret_cast<TransactionStmt*>(statement)->kind == TRANS_STMT_COMMIT_PREPARED;
}

// A process sees the eviction count after it has shown its pid, and we read the pids after raising the count: one of the
// two notices the other.
void send_away(shared::Database* database) {
  constexpr long patience_ms = 10'000;
  const TimestampTz give_up = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), patience_ms);
  ConditionVariablePrepareToSleep(&database->moved);
  while (shared::someone_there(database) && GetCurrentTimestamp() < give_up) {
    for (int i = 0; i < shared::processes_each(); i++) {
      shared::Worker* worker = shared::worker_at(database, i);
      const auto pid = static_cast<pid_t>(pg_atomic_read_u32(&worker->pid));
      if (pid == 0) continue;
      pg_atomic_write_u32(&worker->healthy,
                          1);  // one that we end before its first turn is not one that failed to start
      kill(pid, SIGTERM);
    }
    (void)ConditionVariableTimedSleep(&database->moved, 100, PG_WAIT_EXTENSION);
  }
  ConditionVariableCancelSleep();
}

// Databases that this transaction wants for itself. Our processes come back when it has ended: before the commit the
// launcher would still see the old pg_database, and a rename may be followed by more in the same transaction.
List* wanted = NIL;
bool databases_touched = false;

void let_back(ResourceReleasePhase phase, bool, bool is_top_level, void*) {
  if (phase != RESOURCE_RELEASE_AFTER_LOCKS || !is_top_level || !databases_touched) return;
  ListCell* cell;
  foreach (cell, wanted) pg_atomic_fetch_sub_u32(&static_cast<shared::Database*>(lfirst(cell))->evictions, 1);
  list_free(wanted);
  wanted = NIL;
  databases_touched = false;
  pg_atomic_write_u32(&shared::get()->databases_changed, 1);
  shared::wake_launcher();
}

void take_alone(Oid oid) {
  databases_touched = true;
  shared::Database* database = OidIsValid(oid) ? shared::find(oid) : nullptr;
  if (!database) return;
  MemoryContext before = MemoryContextSwitchTo(TopMemoryContext);
  wanted = lappend(wanted, database);
  MemoryContextSwitchTo(before);
  pg_atomic_fetch_add_u32(&database->evictions, 1);
  send_away(database);
}

void run(PlannedStmt* pstmt, const char* text, bool read_only_tree, ProcessUtilityContext context, ParamListInfo params,
         QueryEnvironment* environment, DestReceiver* destination, QueryCompletion* completion) {
  (previous ? previous : standard_ProcessUtility)(pstmt, text, read_only_tree, context, params, environment,
                                                  destination, completion);
}

void utility(PlannedStmt* pstmt, const char* text, bool read_only_tree, ProcessUtilityContext context,
             ParamListInfo params, QueryEnvironment* environment, DestReceiver* destination,
             QueryCompletion* completion) {
  Node* statement = pstmt->utilityStmt;
  const bool commit_prepared = is_commit_prepared(statement);
  const bool ours = changes_what_we_read(statement);
  const bool creates_extension = IsA(statement, CreateExtensionStmt);
  if (OidIsValid(MyDatabaseId)) segment::guard_statement(statement);
  if (shared::get() && touches_databases(statement)) {
    const char* name = wanted_alone(statement);
    const Oid oid = name ? get_database_oid(name, true) : InvalidOid;
    take_alone(OidIsValid(oid) && will_be_allowed(statement, oid) ? oid : InvalidOid);
  }
  // The drop and the worker would lock our tables in different orders. If it is refused, the worker comes back.
  if (shared::get() && OidIsValid(MyDatabaseId) && is_drop(statement) && OidIsValid(pg::extension_oid()) &&
      segment::drops_extension(statement) && segment::may_drop_extension())
    take_alone(MyDatabaseId);
  run(pstmt, text, read_only_tree, context, params, environment, destination, completion);

  if (ours) enqueue::wake_at_commit();
  if (creates_extension && OidIsValid(pg::extension_oid())) enqueue::use_at_commit();
  // What PREPARE TRANSACTION left behind became visible just now, without a commit callback of its own session.
  if (commit_prepared && shared::get()) {
    if (!shared::find(MyDatabaseId) && OidIsValid(pg::extension_oid())) (void)shared::claim(MyDatabaseId);
    if (shared::Database* here = shared::find(MyDatabaseId)) shared::wake_worker(here);
    shared::wake_launcher();
  }
}

}  // namespace

void define_hooks() {
  previous = ProcessUtility_hook;
  ProcessUtility_hook = utility;
  RegisterResourceReleaseCallback(let_back, nullptr);
}

}  // namespace outbox::worker
