#include "worker/kafka_server.hpp"

#include <sys/stat.h>

#include <string_view>
#include <vector>

#include "pg/error.hpp"
#include "pg/lookup.hpp"
#include "pg/text.hpp"
#include "publish/options.hpp"
#include "settings.hpp"

namespace outbox::worker {

namespace {

using publish::Place;
using publish::Verdict;

// Server code. Everything read_kafka_server() needs from the catalogs.
struct Found {
  const char* problem = nullptr;
  bool superuser = false;
  List* options = NIL;  // DefElem
  List* mapping_options = NIL;
};

List* user_mapping_options(Oid user, Oid server) {
  HeapTuple tuple = SearchSysCache2(USERMAPPINGUSERSERVER, ObjectIdGetDatum(user), ObjectIdGetDatum(server));
  if (!HeapTupleIsValid(tuple)) return nullptr;
  bool null;
  Datum options = SysCacheGetAttr(USERMAPPINGUSERSERVER, tuple, Anum_pg_user_mapping_umoptions, &null);
  List* list = null ? NIL : untransformRelOptions(options);
  ReleaseSysCache(tuple);
  return list;
}

bool mapping_exists(Oid user, Oid server) {
  return SearchSysCacheExists2(USERMAPPINGUSERSERVER, ObjectIdGetDatum(user), ObjectIdGetDatum(server));
}

Found find_server(const char* name) {
  Found found;
  ForeignServer* server = GetForeignServerByName(name, true);
  if (!server) {
    found.problem = psprintf(
        "there is no foreign server \"%s\": CREATE SERVER %s FOREIGN DATA WRAPPER outbox_kafka OPTIONS "
        "(\"bootstrap.servers\" 'host:9092')",
        name, quote_identifier(name));
    return found;
  }
  if (strcmp(GetForeignDataWrapper(server->fdwid)->fdwname, "outbox_kafka") != 0) {
    found.problem = psprintf("foreign server \"%s\" does not use the foreign data wrapper outbox_kafka", name);
    return found;
  }
  found.superuser = superuser_arg(server->owner);
  if (!found.superuser && server->owner != pg::extension_owner()) {
    found.problem = psprintf(
        "foreign server \"%s\" belongs to \"%s\", who is neither the owner of the extension nor a "
        "superuser: ALTER SERVER %s OWNER TO …",
        name, GetUserNameFromId(server->owner, false), quote_identifier(name));
    return found;
  }
  found.options = server->options;
  found.mapping_options = mapping_exists(server->owner, server->serverid)
                              ? user_mapping_options(server->owner, server->serverid)
                              : user_mapping_options(InvalidOid, server->serverid);
  return found;
}

struct Option {
  const char* name;
  const char* value;
};

// Server code: librdkafka takes UTF-8.
Option option_at(List* options, int index) {
  auto* element = lfirst_node(DefElem, list_nth_cell(options, index));
  const char* value = defGetString(element);  // an error where there is none
  const pg::Bytes utf8 = pg::to_utf8(value, static_cast<int>(strlen(value)), "option value");
  return {element->defname, pnstrdup(utf8.data, utf8.size)};
}

// Another certificate under the same name is a new configuration. A file that is not there has a state as well.
std::string state_of_file(const std::string& path) {
  struct stat file {};
  if (::stat(path.c_str(), &file) != 0) return path + ": none\n";
  return path + ": " + std::to_string(file.st_ino) + ' ' + std::to_string(file.st_size) + ' ' +
         std::to_string(file.st_mtim.tv_sec) + '.' + std::to_string(file.st_mtim.tv_nsec) + '\n';
}

bool add_options(List* options, Place place, bool superuser, KafkaServer& result) {
  const int count = list_length(options);
  for (int i = 0; i < count; i++) {
    const Option option = pg::call([options, i] { return option_at(options, i); });
    const Verdict verdict = publish::check_option(option.name, option.value, place, superuser);
    if (verdict.kind != Verdict::Kind::ok) {
      result.reason = verdict.message + (verdict.hint.empty() ? "" : ": " + verdict.hint);
      return false;
    }
    result.settings->properties.emplace_back(option.name, option.value);
    if (publish::names_file(option.name)) result.files += state_of_file(option.value);
  }
  return true;
}

}  // namespace

KafkaServer read_kafka_server(const char* name) {
  KafkaServer result;
  const Found found = pg::call([name] { return find_server(name); });
  if (found.problem) {
    result.reason = found.problem;
    return result;
  }
  result.settings.emplace();
  result.settings->max_message_bytes = settings::max_message_bytes;
  if (!add_options(found.options, Place::server, found.superuser, result) ||
      !add_options(found.mapping_options, Place::user_mapping, found.superuser, result)) {
    result.settings.reset();
    return result;
  }
  for (const publish::Property& property : result.settings->properties)
    if (property.first == "bootstrap.servers" || property.first == "metadata.broker.list") return result;
  result.settings.reset();
  result.reason = std::string("foreign server \"") + name + "\" has no option \"bootstrap.servers\"";
  return result;
}

namespace {

int sqlstate_of(Verdict::Kind kind) {
  switch (kind) {
    case Verdict::Kind::bad_value:
      return ERRCODE_FDW_INVALID_ATTRIBUTE_VALUE;
    case Verdict::Kind::superuser_only:
      return ERRCODE_INSUFFICIENT_PRIVILEGE;
    case Verdict::Kind::secret:
    case Verdict::Kind::wrong_place:
    case Verdict::Kind::guarantee:
      return ERRCODE_FDW_INVALID_OPTION_NAME;
    default:
      return ERRCODE_FDW_OPTION_NAME_NOT_FOUND;
  }
}

void report(const Verdict& verdict) {
  const int level = verdict.kind == Verdict::Kind::unknown ? WARNING : ERROR;
  const int sqlstate = sqlstate_of(verdict.kind);
  const char* message = verdict.message.c_str();
  const char* hint = verdict.hint.c_str();
  pg::call([=] {
    ereport(level, (errcode(sqlstate), errmsg("%s", message), hint[0] ? errhint("%s", hint) : 0, errhidestmt(true)));
  });
}

Datum kafka_options(PG_FUNCTION_ARGS) {
  List* options = pg::call([fcinfo] {
    if (array_contains_nulls(PG_GETARG_ARRAYTYPE_P(0)))
      ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("options must not be null")));
    return untransformRelOptions(PG_GETARG_DATUM(0));
  });
  const Oid catalog = PG_GETARG_OID(1);
  if (catalog != ForeignServerRelationId && catalog != UserMappingRelationId) {
    if (options != NIL)
      pg::call([] {
        ereport(ERROR, (errcode(ERRCODE_FDW_INVALID_OPTION_NAME),
                        errmsg("the foreign data wrapper outbox_kafka has no options"),
                        errhint("Options belong to the server or the user mapping.")));
      });
    PG_RETURN_VOID();
  }
  const Place place = catalog == ForeignServerRelationId ? Place::server : Place::user_mapping;
  const bool is_superuser = pg::call([] { return superuser(); });
  const int count = list_length(options);
  for (int i = 0; i < count; i++) {
    const Option option = pg::call([options, i] { return option_at(options, i); });
    const Verdict verdict = publish::check_option(option.name, option.value, place, is_superuser);
    if (verdict.kind != Verdict::Kind::ok) report(verdict);
    if (std::string_view(option.name) == "sasl.mechanisms" || std::string_view(option.name) == "sasl.mechanism")
      if (const std::optional<std::string> warning = publish::scram_warning(option.value)) {
        const char* text = warning->c_str();
        pg::call([text] { ereport(WARNING, (errmsg("%s", text))); });
      }
  }
  PG_RETURN_VOID();
}

}  // namespace
}  // namespace outbox::worker

OUTBOX_FUNCTION(outbox_kafka_options, outbox::worker::kafka_options);
