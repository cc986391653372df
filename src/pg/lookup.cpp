#include "pg/lookup.hpp"

extern "C" {
#include "catalog/pg_am.h"
}

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

Oid schema_oid() { return get_namespace_oid("outbox", true); }

namespace {

FormData_pg_extension extension_form(Oid extension) {
  Relation catalog;
  HeapTuple tuple = extension_tuple(&catalog);
  FormData_pg_extension form{};
  if (HeapTupleIsValid(tuple)) {
    auto* found = reinterpret_cast<Form_pg_extension>(GETSTRUCT(tuple));
    if (found->oid == extension) memcpy(&form, found, offsetof(FormData_pg_extension, extrelocatable));
    heap_freetuple(tuple);
  }
  table_close(catalog, AccessShareLock);
  return form;
}

}  // namespace

Oid extension_owner(Oid extension) { return extension_form(extension).extowner; }

Oid extension_schema(Oid extension) { return extension_form(extension).extnamespace; }

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

Oid relation_oid(const char* name) {
  Oid schema = schema_oid();
  return OidIsValid(schema) ? get_relname_relid(name, schema) : InvalidOid;
}

Oid leaf_oid(const char* base, int32 segment) {
  char name[NAMEDATALEN];
  pg_snprintf(name, sizeof name, "%s_%d", base, segment);
  return relation_oid(name);
}

Oid index_of(Relation relation, Oid access_method) {
  List* indexes = RelationGetIndexList(relation);
  Oid found = InvalidOid;
  ListCell* cell;
  foreach (cell, indexes) {
    Oid index = lfirst_oid(cell);
    HeapTuple tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(index));
    if (!HeapTupleIsValid(tuple)) continue;
    bool match = reinterpret_cast<Form_pg_class>(GETSTRUCT(tuple))->relam == access_method;
    ReleaseSysCache(tuple);
    if (match) {
      found = index;
      break;
    }
  }
  list_free(indexes);
  return found;
}

Datum not_null(HeapTuple tuple, int attribute, TupleDesc desc) {
  bool null;
  Datum value = heap_getattr(tuple, attribute, desc, &null);
  if (null) elog(ERROR, "unexpected null in column %d", attribute);
  return value;
}

}  // namespace outbox::pg
