#include "pg/lookup.hpp"

namespace outbox::pg {

namespace {

// pg_extension has no syscache.
HeapTuple extension_tuple(Relation* catalog) {
  *catalog = table_open(ExtensionRelationId, AccessShareLock);
  ScanKeyData key;
  ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber, F_NAMEEQ, CStringGetDatum("outbox"));
  SysScanDesc scan = systable_beginscan(*catalog, ExtensionNameIndexId, true, nullptr, 1, &key);
  HeapTuple tuple = systable_getnext(scan);
  if (HeapTupleIsValid(tuple)) tuple = heap_copytuple(tuple);
  systable_endscan(scan);
  return tuple;
}

}  // namespace

Oid extension_oid() { return get_extension_oid("outbox", true); }

Oid schema_owner(Oid schema) {
  HeapTuple tuple = SearchSysCache1(NAMESPACEOID, ObjectIdGetDatum(schema));
  if (!HeapTupleIsValid(tuple)) return InvalidOid;
  const Oid owner = reinterpret_cast<Form_pg_namespace>(GETSTRUCT(tuple))->nspowner;
  ReleaseSysCache(tuple);
  return owner;
}

Oid schema_oid() { return get_namespace_oid("outbox", true); }

namespace {

FormData_pg_extension extension_form() {
  Relation catalog;
  HeapTuple tuple = extension_tuple(&catalog);
  FormData_pg_extension form{};
  if (HeapTupleIsValid(tuple)) {
    memcpy(&form, GETSTRUCT(tuple), offsetof(FormData_pg_extension, extrelocatable));
    heap_freetuple(tuple);
  }
  table_close(catalog, AccessShareLock);
  return form;
}

}  // namespace

Oid extension_owner() { return extension_form().extowner; }

Oid extension_schema() { return extension_form().extnamespace; }

bool extension_is_committed() {
  Relation catalog;
  HeapTuple tuple = extension_tuple(&catalog);
  const bool committed =
      HeapTupleIsValid(tuple) && !TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data));
  table_close(catalog, AccessShareLock);
  return committed;
}

char* extension_version() {
  Relation catalog;
  HeapTuple tuple = extension_tuple(&catalog);
  char* version = nullptr;
  if (HeapTupleIsValid(tuple)) {
    bool null;
    Datum value = heap_getattr(tuple, Anum_pg_extension_extversion, RelationGetDescr(catalog), &null);
    if (!null) version = TextDatumGetCString(value);
    heap_freetuple(tuple);
  }
  table_close(catalog, AccessShareLock);
  return version;
}

bool is_template_database(Oid database) {
  HeapTuple tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(database));
  if (!HeapTupleIsValid(tuple)) return false;
  const bool answer = reinterpret_cast<Form_pg_database>(GETSTRUCT(tuple))->datistemplate;
  ReleaseSysCache(tuple);
  return answer;
}

Oid relation_oid(const char* name) {
  Oid schema = schema_oid();
  return OidIsValid(schema) ? get_relname_relid(name, schema) : InvalidOid;
}

Oid leaf_oid(const char* base, int32 segment) {
  char name[NAMEDATALEN];
  pg_snprintf(name, sizeof name, "%s_%d", base, segment);
  return relation_oid(name);
}

namespace {

bool is_index_on(Relation index, Oid access_method, std::initializer_list<AttrNumber> columns) {
  const FormData_pg_index* form = index->rd_index;
  if (index->rd_rel->relam != access_method || !form->indisvalid ||
      form->indnatts != static_cast<int>(columns.size()) || form->indnkeyatts != form->indnatts ||
      RelationGetIndexPredicate(index) != NIL || RelationGetIndexExpressions(index) != NIL)
    return false;
  int i = 0;
  for (const AttrNumber column : columns) {
    const bool descending = access_method == BTREE_AM_OID && index->rd_indoption[i] != 0;
    if (form->indkey.values[i++] != column || descending) return false;
  }
  return true;
}

}  // namespace

Oid index_on(Relation relation, Oid access_method, std::initializer_list<AttrNumber> columns) {
  List* indexes = RelationGetIndexList(relation);
  Oid found = InvalidOid;
  ListCell* cell;
  foreach (cell, indexes) {
    Relation index = index_open(lfirst_oid(cell), AccessShareLock);
    if (is_index_on(index, access_method, columns)) found = lfirst_oid(cell);
    index_close(index, AccessShareLock);
    if (OidIsValid(found)) break;
  }
  list_free(indexes);
  return found;
}

namespace {

const char* difference(TupleDesc desc, int index, Oid type, bool not_null) {
  if (index >= desc->natts) return psprintf("It has only %d columns.", desc->natts);
  const FormData_pg_attribute* column = TupleDescAttr(desc, index);
  if (column->attisdropped) return psprintf("Its column number %d was dropped.", index + 1);
  if (column->atttypid != type)
    return psprintf("Column \"%s\" is of type %s, not %s.", NameStr(column->attname), format_type_be(column->atttypid),
                    format_type_be(type));
  if (not_null && !column->attnotnull) return psprintf("Column \"%s\" may be null.", NameStr(column->attname));
  return nullptr;
}

}  // namespace

void require_columns(Relation relation, std::initializer_list<Oid> types, int not_null) {
  TupleDesc desc = RelationGetDescr(relation);
  int index = 0;
  for (const Oid type : types) {
    const bool fits = index < desc->natts && !TupleDescAttr(desc, index)->attisdropped &&
                      TupleDescAttr(desc, index)->atttypid == type &&
                      (index >= not_null || TupleDescAttr(desc, index)->attnotnull);
    if (!fits)
      ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                      errmsg("table \"outbox.%s\" is not as the extension made it", RelationGetRelationName(relation)),
                      errdetail("%s", difference(desc, index, type, index < not_null)),
                      errhint("Undo what was done to the table, or restore it from a backup.")));
    index++;
  }
}

Datum not_null(HeapTuple tuple, int attribute, TupleDesc desc) {
  bool null;
  Datum value = heap_getattr(tuple, attribute, desc, &null);
  if (null) elog(ERROR, "unexpected null in column %d", attribute);
  return value;
}

}  // namespace outbox::pg
