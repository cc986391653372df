# make, make install, make installcheck: for users (PGXS; PG_CONFIG=… names the PostgreSQL to build for).
# make demo, make test and the rest: for a look at it and for development; see CONTRIBUTING.md.

EXTENSION = outbox
MODULE_big = outbox
VERSION = 0.1

PG_CONFIG ?= pg_config
PKG_CONFIG ?= pkg-config
# Builds for several PostgreSQL or librdkafka stand beside each other in folders of their own.
BUILD ?= build

.DEFAULT_GOAL := all
DEVELOPMENT := setup demo test unit soak memcheck bench bench-peers format lint lint-format lint-includes lint-tidy
.PHONY: $(DEVELOPMENT) regress-output FORCE

setup:
	@test/setup

demo:
	@KEEP=$(KEEP) demo/run

test:
	@test/run

unit:
	@test/run unit

soak:
	@OUTBOX_FULL=1 test/run e2e

memcheck:
	@test/run memcheck

bench:
	@bench/run

bench-peers:
	@bench/run peers

CXX_FILES = $(sort $(shell find src demo test/unit bench -name '*.cpp' -o -name '*.hpp'))

format:
	clang-format -i $(CXX_FILES)

lint: lint-format lint-includes lint-tidy

lint-format:
	clang-format --dry-run -Werror $(CXX_FILES)

lint-includes:
	test/check-includes "$$($(PG_CONFIG) --includedir-server)"

lint-tidy:
	cmake --preset dev -Wno-dev --log-level=WARNING -DPG_CONFIG=$(PG_CONFIG)
	printf '%s\n' $(filter %.cpp,$(CXX_FILES)) | xargs -P $$(nproc) -n 3 clang-tidy -p build/dev --quiet

# The rest needs PostgreSQL's and librdkafka's development files, which the targets above may still have to install.
ifneq (,$(filter-out $(DEVELOPMENT),$(or $(MAKECMDGOALS),all)))

SOURCES := $(shell sed 's/\#.*//' src/sources.list)
SQL_SOURCES := $(filter %.sql,$(SOURCES))
OBJS := $(patsubst src/%.cpp,$(BUILD)/obj/%.o,$(filter %.cpp,$(SOURCES)))

SCRIPT := $(BUILD)/outbox--$(VERSION).sql
DATA_built = $(SCRIPT)
DATA = $(wildcard upgrade/*.sql)

REGRESS = $(patsubst sql/%.sql,%,$(sort $(wildcard sql/*.sql)))
REGRESS_OUTPUT = $(BUILD)/regress
# psql counts characters, not bytes, for the width of columns
REGRESS_OPTS = --outputdir=$(REGRESS_OUTPUT) --encoding=UTF8
REGRESS_PREP = regress-output

EXTRA_CLEAN = $(BUILD)

KAFKA_CFLAGS := $(shell $(PKG_CONFIG) --cflags rdkafka)
KAFKA_LIBS := $(shell $(PKG_CONFIG) --libs rdkafka)
$(if $(KAFKA_LIBS),,$(error $(PKG_CONFIG) does not find rdkafka (Debian: pkg-config, librdkafka-dev)))
SHLIB_LINK = -Wl,--version-script=src/exports.map $(KAFKA_LIBS) -lstdc++
# Newer headers of librdkafka have warnings of their own.
KAFKA_SYSTEM = $(patsubst -I%,-isystem %,$(KAFKA_CFLAGS))

PGXS := $(shell $(PG_CONFIG) --pgxs)
$(if $(wildcard $(PGXS)),,$(error $(PG_CONFIG) does not lead to PGXS (Debian: postgresql-server-dev-15)))
# PGXS compiles bitcode with flags of C, whatever the language
override with_llvm = no
include $(PGXS)

# A compiler newer than ours may warn where ours does not: make WERROR=
WERROR = -Werror
OUTBOX_CXXFLAGS = -std=c++20 -O2 -g -fPIC -fvisibility=hidden -Wall -Wextra $(WERROR) -Isrc $(KAFKA_SYSTEM) $(EXTRA_CXXFLAGS)
# The server's headers come last and as system headers: their warnings are not ours. Before PostgreSQL 16 they leave
# PGDLLEXPORT empty, and -fvisibility=hidden would hide the functions that the server looks up.
SERVER_FLAGS = -DPGDLLEXPORT='__attribute__((visibility("default")))' -isystem $(shell $(PG_CONFIG) --includedir-server)

# src/publish is compiled without the server's headers, so that it stays testable without a server.
$(filter $(BUILD)/obj/publish/%,$(OBJS)): SERVER_FLAGS =

$(OBJS): $(BUILD)/obj/%.o: src/%.cpp $(BUILD)/flags
	@$(MKDIR_P) $(@D)
	$(CXX) $(OUTBOX_CXXFLAGS) -MMD -MP $(SERVER_FLAGS) -c -o $@ $<

-include $(OBJS:.o=.d)

# Changes when another PostgreSQL, compiler or flag is chosen: then everything is compiled again.
$(BUILD)/flags: FORCE
	$(call write_if_changed,'$(shell $(PG_CONFIG) --version --includedir-server)' '$(CXX) $(OUTBOX_CXXFLAGS)')

# PGXS links into this folder, whatever BUILD is.
$(shlib): build/linked src/exports.map
build/linked: FORCE
	$(call write_if_changed,'$(BUILD)' '$(SHLIB_LINK)')

define write_if_changed
@$(MKDIR_P) $(@D)
@printf '%s\n' $(1) > $@.$$$$; if cmp -s $@.$$$$ $@; then rm -f $@.$$$$; else mv $@.$$$$ $@; fi
endef

$(SCRIPT): $(SQL_SOURCES) src/sources.list
	@$(MKDIR_P) $(@D)
	@{ printf '%s\n' '\echo Use "CREATE EXTENSION outbox" to load this file. \quit'; \
	   for part in $(SQL_SOURCES); do printf '\n-- %s\n\n' $$part; cat $$part; done; } > $@.$$$$ && mv $@.$$$$ $@

regress-output:
	@$(MKDIR_P) $(REGRESS_OUTPUT)

# With the publisher's own configuration, so that it is the same.
$(BUILD)/bare-producer: bench/bare_producer.cpp $(filter $(BUILD)/obj/publish/%,$(OBJS))
	$(CXX) $(OUTBOX_CXXFLAGS) -o $@ $^ $(KAFKA_LIBS) -pthread

build/embedded-kafka: demo/embedded_kafka.cpp
	@$(MKDIR_P) $(@D)
	$(CXX) -std=c++20 -O2 -Wall -Wextra $(WERROR) $(KAFKA_SYSTEM) -o $@ $< $(KAFKA_LIBS)

endif
