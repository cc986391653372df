#include "claim/fetch.hpp"

#include "enqueue/message.hpp"
#include "pg/error.hpp"
#include "pg/text.hpp"

namespace outbox::claim {

namespace {

using enqueue::Column;

constexpr std::int64_t postgres_epoch_ms = (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * INT64CONST(86'400'000);

// Server code but for the growing of the batch. Lives for one fetch().
struct Reader {
  const std::vector<Leaf>& leaves;
  Snapshot snapshot;
  int32 lane;
  std::uint32_t window;
  Batch& batch;
  Relation table = nullptr;
  IndexFetchTableData* rows = nullptr;
  TupleTableSlot* slot = nullptr;
  int open_leaf = -1;
  MemoryContext scratch = nullptr;

  // False if the leaf is not the one that was walked any more.
  bool open(int leaf) {
    if (leaf == open_leaf) return table != nullptr;
    close();
    open_leaf = leaf;
    table = pg::try_open(leaves[leaf].table, AccessShareLock);
    if (!table) return false;
    if (pg::rel_file(table) != leaves[leaf].file) {
      close();
      return false;
    }
    enqueue::require_shape(table);
    slot = table_slot_create(table, nullptr);
    rows = table_index_fetch_begin(table);
    return true;
  }

  void close() {
    if (slot) ExecDropSingleTupleTableSlot(slot);
    if (rows) table_index_fetch_end(rows);
    if (table) table_close(table, AccessShareLock);
    slot = nullptr;
    rows = nullptr;
    table = nullptr;
  }

  [[nodiscard]] bool is_candidate(const Candidate& candidate) const {
    slot_getallattrs(slot);
    const Datum* values = slot->tts_values;
    return DatumGetInt64(values[Column::id - 1]) == candidate.id &&
           DatumGetUInt64(values[Column::xid - 1]) == candidate.xid && DatumGetInt32(values[Column::lane - 1]) == lane;
  }

  // As an index scan does it: neighbours mostly stand on one page, which stays pinned from one to the next.
  [[nodiscard]] bool is_there(const Candidate& candidate) const {
    ItemPointerData tid = candidate.tid;
    bool again = false;
    return table_index_fetch_tuple(rows, &tid, snapshot, slot, &again, nullptr) && is_candidate(candidate);
  }

  std::optional<std::string_view> bytes(Column column) {
    if (slot->tts_isnull[column - 1]) return std::nullopt;
    bytea* value = DatumGetByteaPP(slot->tts_values[column - 1]);
    return batch.arena.copy(VARDATA_ANY(value), VARSIZE_ANY_EXHDR(value));
  }

  // Neighbours mostly go to one topic, whose name then stands in the arena once.
  std::string_view topic() {
    bytea* value = DatumGetByteaPP(slot->tts_values[Column::topic - 1]);
    const std::string_view name(VARDATA_ANY(value), VARSIZE_ANY_EXHDR(value));
    if (!batch.records.empty() && batch.records.back().topic == name) return batch.records.back().topic;
    return batch.arena.copy(name.data(), name.size());
  }

  std::string_view utf8(const JsonbValue& value) {
    const pg::Bytes text = pg::to_utf8(value.val.string.val, value.val.string.len, "header");
    return batch.arena.copy(text.data, static_cast<std::size_t>(text.size));
  }

  std::string_view header_name(const JsonbValue& value) {
    const pg::Bytes text = pg::to_utf8(value.val.string.val, value.val.string.len, "header name");
    const auto size = static_cast<std::size_t>(text.size);
    char* to = batch.arena.reserve(size + 1);
    std::memcpy(to, text.data, size);
    to[size] = '\0';
    return {to, size};
  }

  void add_header(std::string_view name, const JsonbValue& value) {
    publish::Header header{name, std::nullopt};
    if (value.type == jbvString) header.value = utf8(value);
    batch.headers.push_back(header);
  }

  void add_repeated(std::string_view name, JsonbContainer* array) {
    JsonbIterator* it = JsonbIteratorInit(array);
    JsonbValue value;
    JsonbIteratorToken token;
    while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
      if (token == WJB_ELEM) add_header(name, value);
  }

  void add_headers(Jsonb* headers) {
    std::string_view name;
    JsonbIterator* it = JsonbIteratorInit(&headers->root);
    JsonbValue value;
    JsonbIteratorToken token;
    while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE) {
      if (token == WJB_KEY)
        name = header_name(value);
      else if (token == WJB_VALUE && value.type == jbvBinary)
        add_repeated(name, value.val.binary.data);
      else if (token == WJB_VALUE)
        add_header(name, value);
    }
  }

  std::string_view uuid_text() {
    static const char digits[] = "0123456789abcdef";
    const unsigned char* uuid = DatumGetUUIDP(slot->tts_values[Column::message_id - 1])->data;
    char* to = batch.arena.reserve(36);
    char* out = to;
    for (int i = 0; i < UUID_LEN; i++) {
      if (i == 4 || i == 6 || i == 8 || i == 10) *out++ = '-';
      *out++ = digits[uuid[i] >> 4];
      *out++ = digits[uuid[i] & 15];
    }
    return {to, 36};
  }

  void add() {
    publish::Record record;
    Origin origin;
    const Datum* values = slot->tts_values;
    record.topic = topic();
    record.key = bytes(Column::key);
    record.payload = bytes(Column::payload);
    batch.header_begin.push_back(batch.headers.size());
    batch.headers.push_back({"id", uuid_text()});
    if (!slot->tts_isnull[Column::headers - 1]) add_headers(DatumGetJsonbP(values[Column::headers - 1]));
    origin.id = DatumGetInt64(values[Column::id - 1]);
    origin.xid = DatumGetUInt64(values[Column::xid - 1]);
    origin.enqueued_at = DatumGetTimestampTz(values[Column::enqueued_at - 1]);
    origin.segment = leaves[open_leaf].segment;
    origin.window = window;
    origin.bytes = static_cast<std::uint32_t>((record.key ? record.key->size() : 0) +
                                              (record.payload ? record.payload->size() : 0));
    record.timestamp_ms = origin.enqueued_at / 1000 + postgres_epoch_ms;
    batch.records.push_back(record);
    batch.origins.push_back(origin);
  }

  void read(std::span<const Candidate> candidates, const Budget& budget, Fetched& result) {
    scratch = AllocSetContextCreate(CurrentMemoryContext, "outbox fetch", ALLOCSET_DEFAULT_SIZES);
    for (const Candidate& candidate : candidates) {
      if (batch.records.size() >= budget.messages || batch.cost() >= budget.cost) break;
      if (!open(candidate.leaf)) {
        result.rewritten = true;
        break;
      }
      MemoryContext before = MemoryContextSwitchTo(scratch);
      if (is_there(candidate)) add();
      MemoryContextSwitchTo(before);
      MemoryContextReset(scratch);
      result.candidates++;
      if (result.candidates % 1024 == 0) CHECK_FOR_INTERRUPTS();
    }
    close();
    MemoryContextDelete(scratch);
  }
};

}  // namespace

Fetched fetch(std::span<const Candidate> candidates, const std::vector<Leaf>& leaves, Snapshot snapshot, int32 lane,
              std::uint32_t window, const Budget& budget, Batch& batch) {
  Fetched result;
  batch.reserve(std::min(candidates.size(), budget.messages));
  Reader reader{leaves, snapshot, lane, window, batch};
  pg::call([&] { reader.read(candidates, budget, result); });
  // Only now do the headers not move any more.
  const std::span<const publish::Header> all = batch.headers;
  for (std::size_t i = 0; i < batch.records.size(); i++) {
    const std::size_t end = i + 1 < batch.records.size() ? batch.header_begin[i + 1] : all.size();
    batch.records[i].headers = all.subspan(batch.header_begin[i], end - batch.header_begin[i]);
  }
  return result;
}

bool keep_visible(std::vector<Candidate>& candidates, const std::vector<Leaf>& leaves, Snapshot snapshot, int32 lane) {
  Batch none;
  Reader reader{leaves, snapshot, lane, 0, none};
  std::size_t kept = 0;
  bool rewritten = false;
  std::vector<Candidate> list = candidates;
  pg::call([&] {
    for (std::size_t i = 0; i < list.size() && !rewritten; i++) {
      if (i % 1024 == 0) CHECK_FOR_INTERRUPTS();
      const Candidate candidate = list[i];
      rewritten = !reader.open(candidate.leaf);
      if (!rewritten && reader.is_there(candidate)) list[kept++] = candidate;
    }
    reader.close();
  });
  if (rewritten) return false;
  list.resize(kept);
  candidates = std::move(list);
  return true;
}

}  // namespace outbox::claim
