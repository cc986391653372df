// Finds our own objects in the catalogs. Server code.
#pragma once

#include <initializer_list>

#include "pg/postgres.hpp"

namespace outbox::pg {

// InvalidOid without the extension; a schema `outbox` that is not the extension's does not count.
Oid extension_oid();
Oid schema_oid();
Oid schema_owner(Oid schema);
// InvalidOid without the extension.
Oid extension_owner();
// The schema that CREATE EXTENSION recorded; not the one its objects are in.
Oid extension_schema();
// False while the CREATE EXTENSION is part of the current transaction: then no worker can see it.
bool extension_is_committed();
// The version that CREATE EXTENSION installed, palloc'd; nullptr without the extension.
char* extension_version();

bool is_template_database(Oid database);

// An object of the schema outbox by name; InvalidOid if there is none.
Oid relation_oid(const char* name);
// `base` is "_message" or "_progress".
Oid leaf_oid(const char* base, int32 segment);
// The valid index of a relation on just these plain columns, ascending, without a predicate; InvalidOid if there is none.
// Operators may have made indexes of their own beside ours.
Oid index_on(Relation relation, Oid access_method, std::initializer_list<AttrNumber> columns);

// The single value of a column in a tuple of ours; an Assert-like ERROR if NULL.
// An error if the first columns of a table of ours are not of these types, or may be null among the first `not_null` ones:
// reading them would take one thing for another.
void require_columns(Relation relation, std::initializer_list<Oid> types, int not_null);

Datum not_null(HeapTuple tuple, int attribute, TupleDesc desc);

}  // namespace outbox::pg
