#include "segment/archive.hpp"

#include "enqueue/message.hpp"
#include "pg/error.hpp"
#include "pg/lookup.hpp"

namespace outbox::segment {

TransactionId freeze_horizon() {
  const Oid oid = pg::relation_oid("_segment_event");
  Relation any_table = OidIsValid(oid) ? pg::try_open(oid, AccessShareLock) : nullptr;
  if (!any_table) return FirstNormalTransactionId;
  const TransactionId horizon = GetOldestNonRemovableTransactionId(any_table);
  table_close(any_table, AccessShareLock);
  return horizon;
}

bool can_be_frozen(const Entry& entry, TransactionId horizon) {
  return OidIsValid(entry.messages) && TransactionIdPrecedes(entry.drained_by, horizon);
}

// vacuum() ends the transaction that it is called in and begins another one. What it remembers meanwhile is in a context
// below PortalContext.
void freeze(Oid table) {
  static MemoryContext context = nullptr;
  if (context) MemoryContextDelete(context);  // of one that has failed
  context = AllocSetContextCreate(TopMemoryContext, "outbox freeze", ALLOCSET_DEFAULT_SIZES);
  PortalContext = context;
  SetCurrentStatementStartTimestamp();
  StartTransactionCommand();
  PushActiveSnapshot(GetTransactionSnapshot());
  MemoryContextSwitchTo(context);
  auto* statement = makeNode(VacuumStmt);
  statement->is_vacuumcmd = true;
  statement->options =
      list_make3(makeDefElem(pstrdup("freeze"), nullptr, -1), makeDefElem(pstrdup("skip_locked"), nullptr, -1),
                 makeDefElem(pstrdup("parallel"), reinterpret_cast<Node*>(makeInteger(0)), -1));
  statement->rels = list_make1(makeVacuumRelation(nullptr, table, NIL));
  ExecVacuum(make_parsestate(nullptr), statement, true);
  CommitTransactionCommand();
  MemoryContextSwitchTo(TopMemoryContext);
  MemoryContextDelete(context);
  context = nullptr;
  PortalContext = nullptr;
}

bool is_frozen(const Entry& entry) {
  HeapTuple tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(entry.messages));
  if (!HeapTupleIsValid(tuple)) return false;
  const TransactionId frozen_up_to = reinterpret_cast<Form_pg_class>(GETSTRUCT(tuple))->relfrozenxid;
  ReleaseSysCache(tuple);
  return !TransactionIdPrecedes(frozen_up_to, entry.drained_by);
}

bool keep(std::int32_t segment) {
  const Oid table_oid = pg::leaf_oid("_message", segment);
  if (OidIsValid(table_oid)) {
    if (!ConditionalLockRelationOid(table_oid, AccessExclusiveLock)) return false;
    Relation table = relation_open(table_oid, NoLock);
    const Oid index =
        pg::index_on(table, BTREE_AM_OID, {enqueue::Column::lane, enqueue::Column::xid, enqueue::Column::id});
    relation_close(table, NoLock);
    if (OidIsValid(index)) {
      if (!ConditionalLockRelationOid(index, AccessExclusiveLock)) return false;
      if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
      if (SPI_execute(psprintf("DROP INDEX outbox.%s", quote_identifier(get_rel_name(index))), false, 0) !=
          SPI_OK_UTILITY)
        elog(ERROR, "could not drop the index of segment %d", segment);
      SPI_finish();
    }
  }
  add_event(segment, "archived", 0, "kept");
  return true;
}

// ---- the archive function

namespace {

enum FunctionColumn : int { function_column = 2, role_column, owner_column, registered_at_column };

// What the function may have exported must not be gone after a crash. The end of what is written can lie just behind the
// header of a page that has nothing else yet; such a position cannot be flushed, that of the page can.
void flush_log() {
  XLogRecPtr upto = GetXLogInsertRecPtr();
  const auto in_page = upto % XLOG_BLCKSZ;
  if (in_page == SizeOfXLogShortPHD || XLogSegmentOffset(upto, wal_segment_size) == SizeOfXLogLongPHD) upto -= in_page;
  XLogFlush(upto);
}

constexpr const char* set_again = "SELECT outbox.set_archive_function(…)";

struct Callee {
  Oid role;
  Oid function;
};

Oid owner_of(Oid function) {
  HeapTuple tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
  if (!HeapTupleIsValid(tuple))
    ereport(ERROR, (errcode(ERRCODE_UNDEFINED_FUNCTION), errmsg("function with OID %u does not exist", function)));
  const Oid owner = reinterpret_cast<Form_pg_proc>(GETSTRUCT(tuple))->proowner;
  ReleaseSysCache(tuple);
  return owner;
}

// The function is known by its name. Where it was dropped, whoever may create in its schema can give that name to another one,
// which would run as the role that has registered the first. A superuser needs no such way.
void check_owner(const ArchiveFunction& registered, const Callee& callee) {
  const Oid owner = owner_of(callee.function);
  if (owner == callee.role || superuser_arg(owner)) return;
  const char* name = GetUserNameFromId(owner, false);
  if (strcmp(name, registered.owner) == 0) return;
  ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
                  errmsg("archive function %s belongs to \"%s\" now, to \"%s\" when it was registered", registered.name,
                         name, registered.owner),
                  errhint("Look at it, then %s", set_again)));
}

Callee look_up(const ArchiveFunction& registered) {
  const Oid role = get_role_oid(registered.role, true);
  if (!OidIsValid(role))
    ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT),
                    errmsg("role \"%s\", which has registered the archive function, does not exist", registered.role),
                    errhint("%s", set_again)));
  Oid type = TEXTOID;
  Datum name = CStringGetTextDatum(registered.name);
  bool none = true;
  if (SPI_execute_with_args("SELECT pg_catalog.to_regprocedure($1)::pg_catalog.oid, "
                            "'outbox.set_archive_function(regprocedure)'::pg_catalog.regprocedure::pg_catalog.oid",
                            1, &type, &name, nullptr, true, 1) != SPI_OK_SELECT ||
      SPI_processed != 1)
    elog(ERROR, "could not look the archive function up");
  const Oid function = DatumGetObjectId(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &none));
  bool never;
  const Oid setter = DatumGetObjectId(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 2, &never));
  if (none)
    ereport(ERROR, (errcode(ERRCODE_UNDEFINED_FUNCTION), errmsg("archive function %s does not exist", registered.name),
                    errhint("%s", set_again)));
  check_owner(registered, {role, function});
  if (!pg::may_execute(function, role))
    ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
                    errmsg("role \"%s\" may not execute the archive function %s", registered.role, registered.name),
                    errhint("GRANT EXECUTE ON FUNCTION %s TO %s", registered.name, quote_identifier(registered.role))));
  // Messages are shown to no one who was an operator once.
  if (!pg::may_execute(setter, role))
    ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
                    errmsg("role \"%s\", which has registered the archive function, is no operator", registered.role),
                    errhint("SELECT outbox.grant_operator('%s')", quote_identifier(registered.role))));
  return {role, function};
}

void execute(const char* sql) {
  if (SPI_execute(sql, false, 0) != SPI_OK_UTILITY) elog(ERROR, "could not execute: %s", sql);
}

struct Setting {
  const char* name;
  const char* ordinary;
  char ours[64];  // empty: not changed yet
};
Setting settings_of_users[] = {{"search_path", "\"$user\", public", ""},
                               {"session_replication_role", "origin", ""},
                               {"enable_seqscan", "on", ""},
                               {"lock_timeout", "0", ""},
                               {"row_security", "on", ""},
                               {"client_min_messages", "notice", ""}};

// As for a session of the role: what life.cpp has set for us is not what a function of the users expects, nor a trigger of
// theirs at the commit. So these become the defaults of the process, which RESET comes back to.
void use_ordinary_settings() {
  for (Setting& setting : settings_of_users) {
    strlcpy(setting.ours, GetConfigOption(setting.name, false, false), sizeof setting.ours);
    SetConfigOption(setting.name, setting.ordinary, PGC_SUSET, PGC_S_OVERRIDE);
  }
}

void use_our_settings() {
  for (const Setting& setting : settings_of_users)
    if (setting.ours[0] != '\0') SetConfigOption(setting.name, setting.ours, PGC_SUSET, PGC_S_OVERRIDE);
}

// As the role, which can become nobody else: neither by SET ROLE, nor by a deferred trigger at the commit.
void call_as(const Callee& callee, Oid table) {
  SetUserIdAndSecContext(callee.role, SECURITY_LOCAL_USERID_CHANGE);
  const int guc_level = NewGUCNestLevel();
  Oid type = REGCLASSOID;
  Datum value = ObjectIdGetDatum(table);
  char* schema = get_namespace_name(get_func_namespace(callee.function));
  const char* name = quote_qualified_identifier(schema, get_func_name(callee.function));
  if (SPI_execute_with_args(psprintf("SELECT %s($1)", name), 1, &type, &value, nullptr, false, 0) != SPI_OK_SELECT)
    elog(ERROR, "could not call the archive function");
  AtEOXact_GUC(false, guc_level);  // whatever the function has set
}

}  // namespace

ArchiveFunction read_archive_function(Snapshot snapshot) {
  ArchiveFunction found{};
  const Oid oid = pg::relation_oid("_archive_function");
  Relation relation = OidIsValid(oid) ? pg::try_open(oid, AccessShareLock) : nullptr;
  if (!relation) return found;
  pg::require_columns(relation, {BOOLOID, TEXTOID, NAMEOID, NAMEOID}, 0);
  TupleDesc desc = RelationGetDescr(relation);
  SysScanDesc scan = systable_beginscan(relation, InvalidOid, false, snapshot, 0, nullptr);
  HeapTuple tuple = systable_getnext(scan);
  if (HeapTupleIsValid(tuple)) {
    found.registered = true;
    text_to_cstring_buffer(DatumGetTextPP(pg::not_null(tuple, function_column, desc)), found.name, sizeof found.name);
    strlcpy(found.role, NameStr(*DatumGetName(pg::not_null(tuple, role_column, desc))), sizeof found.role);
    strlcpy(found.owner, NameStr(*DatumGetName(pg::not_null(tuple, owner_column, desc))), sizeof found.owner);
    found.registered_at = DatumGetTimestampTz(pg::not_null(tuple, registered_at_column, desc));
  }
  systable_endscan(scan);
  table_close(relation, AccessShareLock);
  return found;
}

TimestampTz function_due_at(const Entry& entry, TimestampTz registered_at) {
  constexpr int64 first_s = 10;
  constexpr int64 longest_s = 600;
  if (entry.taken) return 0;
  if (entry.failures == 0) return entry.drained_at;
  if (entry.failed_at < registered_at) return registered_at;
  const int64 pause_s = Min(first_s << Min(entry.failures - 1, 10), longest_s);
  return entry.failed_at + pause_s * USECS_PER_SEC;
}

void call_archive_function(std::int32_t segment) {
  Oid user;
  int security_context;
  SetCurrentStatementStartTimestamp();
  StartTransactionCommand();
  PushActiveSnapshot(GetTransactionSnapshot());
  GetUserIdAndSecContext(&user, &security_context);
  const Oid owner = pg::extension_owner();
  const auto be_owner = [=] {
    SetUserIdAndSecContext(owner, security_context | SECURITY_LOCAL_USERID_CHANGE | SECURITY_RESTRICTED_OPERATION);
  };
  be_owner();
  flush_log();
  const ArchiveFunction registered = read_archive_function(GetActiveSnapshot());
  const Oid table = pg::leaf_oid("_message", segment);
  // Before the function: after it nothing of ours is done in this session but what needs no trust in it.
  add_event(segment, "archived", 0, psprintf("function %s", registered.name));
  if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
  const Callee callee = look_up(registered);
  const bool grants = pg_class_aclcheck(table, callee.role, ACL_SELECT) != ACLCHECK_OK;
  const char* role = quote_identifier(registered.role);
  if (grants) execute(psprintf("GRANT SELECT ON outbox._message_%d TO %s", segment, role));
  use_ordinary_settings();
  call_as(callee, table);
  be_owner();
  use_our_settings();
  if (grants) execute(psprintf("REVOKE SELECT ON outbox._message_%d FROM %s", segment, role));
  SPI_finish();
  // Deferred triggers and the queries of held cursors run at the commit: as the role, too.
  use_ordinary_settings();
  SetUserIdAndSecContext(callee.role, SECURITY_LOCAL_USERID_CHANGE);
  PopActiveSnapshot();
  CommitTransactionCommand();
  SetUserIdAndSecContext(user, security_context);
}

void note_failure(std::int32_t segment, const char* why) {
  use_our_settings();
  add_event(segment, "archive_failed", 0, why);
}

namespace {

// Returns its name, with schema and argument.
char* check_archive_function(Oid function, Oid caller) {
  HeapTuple tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
  if (!HeapTupleIsValid(tuple))
    ereport(ERROR, (errcode(ERRCODE_UNDEFINED_FUNCTION), errmsg("function with OID %u does not exist", function)));
  auto* form = reinterpret_cast<Form_pg_proc>(GETSTRUCT(tuple));
  const bool fits =
      form->prokind == PROKIND_FUNCTION && form->pronargs == 1 && form->proargtypes.values[0] == REGCLASSOID;
  ReleaseSysCache(tuple);
  char* name = quote_qualified_identifier(get_namespace_name(get_func_namespace(function)), get_func_name(function));
  if (!fits)
    ereport(ERROR, (errcode(ERRCODE_INVALID_FUNCTION_DEFINITION),
                    errmsg("%s cannot be the archive function", format_procedure(function)),
                    errdetail("It is called with one argument of type regclass: the table of a segment."),
                    errhint("CREATE FUNCTION … (segment regclass) RETURNS void …")));
  if (!pg::may_execute(function, caller))
    ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE), errmsg("permission denied for function %s", name)));
  return psprintf("%s(regclass)", name);
}

// `name` and `owner` may be null.
void store_archive_function(const char* name, Oid role, const char* owner) {
  if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
  if (SPI_execute("DELETE FROM outbox._archive_function", false, 0) != SPI_OK_DELETE)
    elog(ERROR, "could not forget the archive function");
  if (name) {
    Oid types[] = {TEXTOID, NAMEOID, NAMEOID};
    Datum values[] = {CStringGetTextDatum(name),
                      DirectFunctionCall1(namein, CStringGetDatum(GetUserNameFromId(role, false))),
                      DirectFunctionCall1(namein, CStringGetDatum(owner))};
    if (SPI_execute_with_args("INSERT INTO outbox._archive_function (function, role, owner, registered_at) "
                              "VALUES ($1, $2, $3, pg_catalog.clock_timestamp())",
                              3, types, values, nullptr, false, 0) != SPI_OK_INSERT)
      elog(ERROR, "could not register the archive function");
  }
  SPI_finish();
}

Datum set_archive_function(PG_FUNCTION_ARGS) {
  Oid user;
  int security_context;
  GetUserIdAndSecContext(&user, &security_context);
  const char* name = PG_ARGISNULL(0) ? nullptr : check_archive_function(PG_GETARG_OID(0), user);
  const char* owner = name ? GetUserNameFromId(owner_of(PG_GETARG_OID(0)), false) : nullptr;
  SetUserIdAndSecContext(pg::extension_owner(),
                         security_context | SECURITY_LOCAL_USERID_CHANGE | SECURITY_RESTRICTED_OPERATION);
  store_archive_function(name, user, owner);
  SetUserIdAndSecContext(user, security_context);
  PG_RETURN_VOID();
}

}  // namespace
}  // namespace outbox::segment

OUTBOX_SERVER_FUNCTION(outbox_set_archive_function, outbox::segment::set_archive_function);
