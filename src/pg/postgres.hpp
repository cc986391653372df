// The one include of server headers, with what differs between PostgreSQL 14 and 18.
#pragma once

extern "C" {
#include "postgres.h"

#include "access/brin.h"
#include "access/detoast.h"
#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/reloptions.h"
#include "access/relscan.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "catalog/index.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_am.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_foreign_data_wrapper.h"
#include "catalog/pg_foreign_server.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "catalog/pg_user_mapping.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "commands/event_trigger.h"
#include "commands/extension.h"
#include "commands/sequence.h"
#include "commands/trigger.h"
#include "commands/vacuum.h"
#include "common/hashfn.h"
#include "executor/executor.h"
#include "executor/spi.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "foreign/foreign.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "nodes/makefuncs.h"
#include "nodes/parsenodes.h"
#include "nodes/pg_list.h"
#include "parser/parse_node.h"
#include "pgstat.h"
#include "pgtime.h"
#include "port/atomics.h"
#include "port/pg_bswap.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "replication/logicalworker.h"
#include "storage/bufmgr.h"
#include "storage/condition_variable.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "storage/shmem.h"
#include "storage/smgr.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/ps_status.h"
#include "utils/regproc.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/tuplesort.h"
#include "utils/uuid.h"
#include "utils/wait_event.h"
#include "utils/xid8.h"
#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif
}

// Server headers define these as macros; they collide with the C++ standard library.
#undef gettext
#undef dgettext
#undef ngettext
#undef dngettext
#undef printf
#undef fprintf
#undef sprintf
#undef snprintf
#undef vprintf
#undef vfprintf
#undef vsprintf
#undef vsnprintf
#undef strerror
#undef strerror_r

namespace outbox::pg {

#if PG_VERSION_NUM >= 170000
inline TransactionId oldest_clog_xid() { return TransamVariables->oldestClogXid; }
#else
inline TransactionId oldest_clog_xid() { return ShmemVariableCache->oldestClogXid; }
#endif

// An xid8 from an xid that is at most 2^31 older than the next one: of the next one's epoch, or of the one before.
inline uint64 widen(TransactionId xid) {
  const FullTransactionId next = ReadNextFullTransactionId();
  uint64 epoch = EpochFromFullTransactionId(next);
  if (xid > XidFromFullTransactionId(next)) epoch--;
  return (epoch << 32) | xid;
}

#if PG_VERSION_NUM >= 160000
using RelFile = RelFileNumber;
inline RelFile rel_file(Relation rel) { return rel->rd_locator.relNumber; }
#else
using RelFile = Oid;
inline RelFile rel_file(Relation rel) { return rel->rd_node.relNode; }
#endif

inline TimeLineID insertion_timeline() {
#if PG_VERSION_NUM >= 150000
  return GetWALInsertionTimeLine();
#else
  (void)GetRedoRecPtr();  // makes sure that ThisTimeLineID is set
  (void)RecoveryInProgress();
  return ThisTimeLineID;
#endif
}

inline XLogRecPtr flushed_up_to() {
#if PG_VERSION_NUM >= 150000
  return GetFlushRecPtr(nullptr);
#else
  return GetFlushRecPtr();
#endif
}

inline IndexScanDesc begin_index_scan(Relation heap, Relation index, Snapshot snapshot, int keys) {
#if PG_VERSION_NUM >= 180000
  return index_beginscan(heap, index, snapshot, nullptr, keys, 0);
#else
  return index_beginscan(heap, index, snapshot, keys, 0);
#endif
}

inline bool owns_database(Oid database, Oid role) {
#if PG_VERSION_NUM >= 160000
  return object_ownercheck(DatabaseRelationId, database, role);
#else
  return pg_database_ownercheck(database, role);
#endif
}

inline bool may_execute(Oid function, Oid role) {
#if PG_VERSION_NUM >= 160000
  return object_aclcheck(ProcedureRelationId, function, role, ACL_EXECUTE) == ACLCHECK_OK;
#else
  return pg_proc_aclcheck(function, role, ACL_EXECUTE) == ACLCHECK_OK;
#endif
}

inline bool owns_relation(Oid relation, Oid role) {
#if PG_VERSION_NUM >= 160000
  return object_ownercheck(RelationRelationId, relation, role);
#else
  return pg_class_ownercheck(relation, role);
#endif
}

inline Oid primary_key_index(Relation relation) {
#if PG_VERSION_NUM >= 180000
  return RelationGetPrimaryKeyIndex(relation, false);
#else
  return RelationGetPrimaryKeyIndex(relation);
#endif
}

inline bool is_locked_by_us(const LOCKTAG* tag, LOCKMODE mode) {
#if PG_VERSION_NUM >= 170000
  return LockHeldByMe(tag, mode, false);
#else
  return LockHeldByMe(tag, mode);
#endif
}

// Makes the caller's function return a set in a tuplestore, with the columns that it declares.
inline void begin_result_set(FunctionCallInfo fcinfo) {
#if PG_VERSION_NUM >= 150000
  InitMaterializedSRF(fcinfo, 0);
#else
  ReturnSetInfo* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
  if (!result || !IsA(result, ReturnSetInfo) || !(result->allowedModes & SFRM_Materialize))
    ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                    errmsg("set-valued function called in context that cannot accept a set")));
  MemoryContext before = MemoryContextSwitchTo(result->econtext->ecxt_per_query_memory);
  if (get_call_result_type(fcinfo, nullptr, &result->setDesc) != TYPEFUNC_COMPOSITE)
    elog(ERROR, "return type must be a row type");
  result->setDesc = BlessTupleDesc(result->setDesc);
  result->setResult = tuplestore_begin_heap((result->allowedModes & SFRM_Materialize_Random) != 0, false, work_mem);
  result->returnMode = SFRM_Materialize;
  MemoryContextSwitchTo(before);
#endif
}

inline Relation try_open(Oid relation, LOCKMODE mode) { return try_relation_open(relation, mode); }

}  // namespace outbox::pg
