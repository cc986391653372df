// Our tables are the extension's: the triggers here refuse UPDATE, DELETE and TRUNCATE, and guard_statement() refuses what
// changes their shape. Both let our own processes and the extension's scripts through. Server code.
#include "segment/guard_change.hpp"

#include "pg/error.hpp"
#include "pg/lookup.hpp"
#include "settings.hpp"

namespace outbox::segment {

namespace {

bool is_our_process() { return MyBgworkerEntry && strcmp(MyBgworkerEntry->bgw_library_name, "outbox") == 0; }

bool may_change_anything() {
  return settings::allow_data_loss || is_our_process() || creating_extension || IsBinaryUpgrade;
}

bool in_our_schema(Oid relation) { return get_rel_namespace(relation) == pg::schema_oid(); }

[[noreturn]] void refuse(const char* table, const char* what, const char* why) {
  ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                  errmsg("%s is not possible on table \"outbox.%s\"", what, table), errdetail("%s", why),
                  errhint("SET outbox.allow_data_loss = on lets it through; messages can be lost by it.")));
  pg_unreachable();
}

// ---- rows

const char* name_of_event(TriggerEvent event) {
  if (TRIGGER_FIRED_BY_TRUNCATE(event)) return "TRUNCATE";
  return TRIGGER_FIRED_BY_DELETE(event) ? "DELETE" : "UPDATE";
}

TriggerData* called_as_trigger(FunctionCallInfo fcinfo) {
  if (!CALLED_AS_TRIGGER(fcinfo))
    ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
                    errmsg("the function can only be called as a trigger")));
  return reinterpret_cast<TriggerData*>(fcinfo->context);
}

HeapTuple row_of(const TriggerData* trigger) {
  if (!TRIGGER_FIRED_FOR_ROW(trigger->tg_event)) return nullptr;
  return TRIGGER_FIRED_BY_UPDATE(trigger->tg_event) ? trigger->tg_newtuple : trigger->tg_trigtuple;
}

// What another server has replicated means nothing here: its transaction ids are not ours, and it publishes itself.
bool is_replicated(const TriggerData* trigger) { return TRIGGER_FIRED_FOR_ROW(trigger->tg_event) && IsLogicalWorker(); }

Datum ignore_replicated(PG_FUNCTION_ARGS) {
  const TriggerData* trigger = called_as_trigger(fcinfo);
  if (is_replicated(trigger)) return PointerGetDatum(nullptr);
  return PointerGetDatum(row_of(trigger));
}

Datum guard_change(PG_FUNCTION_ARGS) {
  const TriggerData* trigger = called_as_trigger(fcinfo);
  if (is_replicated(trigger)) return PointerGetDatum(nullptr);
  Relation table = trigger->tg_relation;
  // A segment that was moved to another schema is the operator's.
  if (!TRIGGER_FIRED_BY_INSERT(trigger->tg_event) && !may_change_anything() && in_our_schema(RelationGetRelid(table)))
    refuse(RelationGetRelationName(table), name_of_event(trigger->tg_event),
           "The extension alone writes to its tables; what is published is removed with its segment.");
  return PointerGetDatum(row_of(trigger));
}

// ---- statements

// The name of a table of ours that the caller could change, or nullptr. Whoever could not is told so by the statement.
const char* our_table(const RangeVar* name) {
  const Oid relation = name ? RangeVarGetRelid(name, NoLock, true) : InvalidOid;
  if (!OidIsValid(relation) || !in_our_schema(relation) || !OidIsValid(pg::extension_oid())) return nullptr;
  const char kind = get_rel_relkind(relation);
  const char* table = get_rel_name(relation);
  if (!table || table[0] != '_' || (kind != RELKIND_RELATION && kind != RELKIND_PARTITIONED_TABLE)) return nullptr;
  return pg::owns_relation(relation, GetUserId()) ? table : nullptr;
}

// As a roll and a restore do it: outbox._message gets outbox._message_7.
bool attaches_segment(const char* parent, const PartitionCmd* command) {
  const auto size = strlen(parent);
  const char* leaf = command->name->relname;
  return !command->bound->is_default && strncmp(leaf, parent, size) == 0 && leaf[size] == '_' &&
         strspn(leaf + size + 1, "0123456789") == strlen(leaf + size + 1) && our_table(command->name);
}

bool is_harmless(const char* table, const AlterTableCmd* command) {
  switch (command->subtype) {
    case AT_SetStatistics:
    case AT_SetOptions:
    case AT_ResetOptions:
    case AT_SetStorage:
    case AT_SetCompression:
    case AT_ClusterOn:
    case AT_DropCluster:
    case AT_SetTableSpace:
    case AT_SetRelOptions:
    case AT_ResetRelOptions:
    case AT_EnableTrig:
    case AT_EnableAlwaysTrig:
    case AT_EnableReplicaTrig:
    case AT_DisableTrig:
    case AT_EnableTrigAll:
    case AT_DisableTrigAll:
    case AT_EnableTrigUser:
    case AT_DisableTrigUser:
    case AT_EnableRowSecurity:
    case AT_DisableRowSecurity:
    case AT_NoForceRowSecurity:
    case AT_ReplicaIdentity:
    case AT_ChangeOwner:
      return true;
    case AT_AttachPartition:
      return attaches_segment(table, reinterpret_cast<PartitionCmd*>(command->def));
    default:
      return false;
  }
}

void guard_alter(const AlterTableStmt* alter) {
  const char* table = our_table(alter->relation);
  if (!table) return;
  ListCell* cell;
  foreach (cell, alter->cmds)
    if (!is_harmless(table, lfirst_node(AlterTableCmd, cell)))
      refuse(table, "this ALTER TABLE", "Columns, constraints and partitions of the extension's tables are its own.");
}

void guard_rename(const RenameStmt* rename) {
  if (rename->renameType != OBJECT_TABLE && rename->renameType != OBJECT_COLUMN) return;
  if (const char* table = our_table(rename->relation))
    refuse(table, "RENAME", "The extension finds its tables and columns by their names.");
}

void guard_move(const AlterObjectSchemaStmt* move) {
  if (move->objectType != OBJECT_TABLE) return;
  if (const char* table = our_table(move->relation))
    refuse(table, "SET SCHEMA", "The extension finds its tables in the schema \"outbox\".");
}

void guard_trigger(const CreateTrigStmt* trigger) {
  const char* table = our_table(trigger->relation);
  // Our own, in a roll and in a restore.
  if (!table || (list_length(trigger->funcname) == 2 && strcmp(strVal(linitial(trigger->funcname)), "outbox") == 0))
    return;
  refuse(table, "CREATE TRIGGER", "outbox.enqueue() writes past triggers: it would not fire.");
}

void guard_rule(const RuleStmt* rule) {
  if (const char* table = our_table(rule->relation))
    refuse(table, "CREATE RULE", "A rule would change what the extension writes.");
}

void guard_child(const CreateStmt* create) {
  ListCell* cell;
  foreach (cell, create->inhRelations)
    if (const char* table = our_table(lfirst_node(RangeVar, cell)))
      refuse(table, "a partition or child table", "The extension makes the partitions of its tables.");
}

}  // namespace

void guard_statement(Node* statement) {
  if (may_change_anything()) return;
  switch (nodeTag(statement)) {
    case T_AlterTableStmt:
      return guard_alter(reinterpret_cast<AlterTableStmt*>(statement));
    case T_RenameStmt:
      return guard_rename(reinterpret_cast<RenameStmt*>(statement));
    case T_AlterObjectSchemaStmt:
      return guard_move(reinterpret_cast<AlterObjectSchemaStmt*>(statement));
    case T_CreateTrigStmt:
      return guard_trigger(reinterpret_cast<CreateTrigStmt*>(statement));
    case T_RuleStmt:
      return guard_rule(reinterpret_cast<RuleStmt*>(statement));
    case T_CreateStmt:
    case T_CreateForeignTableStmt:
      return guard_child(reinterpret_cast<CreateStmt*>(statement));
    default:
      return;
  }
}

}  // namespace outbox::segment

OUTBOX_SERVER_FUNCTION(outbox_guard_change, outbox::segment::guard_change);
OUTBOX_SERVER_FUNCTION(outbox_ignore_replicated, outbox::segment::ignore_replicated);
