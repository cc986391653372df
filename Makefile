# make, make install, make installcheck: for users (PGXS; PG_CONFIG=… names the PostgreSQL to build for).
# make demo, make test and the rest below: for a look at it and for development; see CONTRIBUTING.md.

EXTENSION = outbox
MODULE_big = outbox
VERSION = 0.1

SOURCES := $(shell sed 's/\#.*//' src/sources.list)
SQL_SOURCES := $(filter %.sql,$(SOURCES))
OBJS := $(patsubst src/%.cpp,build/obj/%.o,$(filter %.cpp,$(SOURCES)))

SCRIPT := build/outbox--$(VERSION).sql
DATA_built = $(SCRIPT)
DATA = $(wildcard upgrade/*.sql)

REGRESS = $(patsubst sql/%.sql,%,$(sort $(wildcard sql/*.sql)))
REGRESS_OUTPUT = build/regress
REGRESS_OPTS = --outputdir=$(REGRESS_OUTPUT)
REGRESS_PREP = regress-output

EXTRA_CLEAN = build

PKG_CONFIG ?= pkg-config
KAFKA_CFLAGS := $(shell $(PKG_CONFIG) --cflags rdkafka)
KAFKA_LIBS := $(shell $(PKG_CONFIG) --libs rdkafka)
# Templates of the C++ library would be exported too.
SHLIB_LINK = $(KAFKA_LIBS) -lstdc++ -Wl,--version-script=src/exports.map

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
# PGXS compiles bitcode with flags of C, whatever the language
override with_llvm = no
include $(PGXS)

# A compiler newer than ours may warn where ours does not: make WERROR=
WERROR = -Werror
OUTBOX_CXXFLAGS = -std=c++20 -O2 -g -fPIC -fvisibility=hidden -Wall -Wextra $(WERROR) -Isrc $(KAFKA_CFLAGS) $(EXTRA_CXXFLAGS)
# The server's headers come last and as system headers: their warnings are not ours. Before PostgreSQL 16 they leave
# PGDLLEXPORT empty, and -fvisibility=hidden would hide the functions that the server looks up.
SERVER_FLAGS = -DPGDLLEXPORT='__attribute__((visibility("default")))' -isystem $(shell $(PG_CONFIG) --includedir-server)

# src/publish is compiled without the server's headers, so that it stays testable without a server.
$(filter build/obj/publish/%,$(OBJS)): SERVER_FLAGS =

$(OBJS): build/obj/%.o: src/%.cpp build/flags
	@$(MKDIR_P) $(@D)
	$(CXX) $(OUTBOX_CXXFLAGS) -MMD -MP $(SERVER_FLAGS) -c -o $@ $<

-include $(OBJS:.o=.d)

# Changes when another PostgreSQL, compiler or flag is chosen: then everything is compiled again.
build/flags: FORCE
	@$(MKDIR_P) $(@D)
	@printf '%s\n' '$(shell $(PG_CONFIG) --version --includedir-server)' '$(CXX) $(subst ','"'"',$(OUTBOX_CXXFLAGS))' > $@.$$$$ && \
	if cmp -s $@.$$$$ $@; then rm -f $@.$$$$; else mv $@.$$$$ $@; fi

$(SCRIPT): $(SQL_SOURCES) src/sources.list
	@$(MKDIR_P) $(@D)
	@{ printf '%s\n' '\echo Use "CREATE EXTENSION outbox" to load this file. \quit'; \
	   for part in $(SQL_SOURCES); do printf '\n-- %s\n\n' $$part; cat $$part; done; } > $@.$$$$ && mv $@.$$$$ $@

regress-output:
	@$(MKDIR_P) $(REGRESS_OUTPUT)

build/embedded-kafka: demo/embedded_kafka.cpp
	@$(MKDIR_P) $(@D)
	$(CXX) -std=c++20 -O2 -Wall -Wextra $(WERROR) $(KAFKA_CFLAGS) -o $@ $< $(KAFKA_LIBS)

# ---- demo and tests

.PHONY: setup demo test unit soak format lint regress-output FORCE

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

CXX_FILES = $(sort $(shell find src demo test/unit bench -name '*.cpp' -o -name '*.hpp'))

format:
	clang-format -i $(CXX_FILES)

lint:
	clang-format --dry-run -Werror $(CXX_FILES)
	test/check-includes "$$($(PG_CONFIG) --includedir-server)"
	cmake --preset dev -DPG_CONFIG=$(PG_CONFIG) > build/cmake.log
	clang-tidy -p build/dev --quiet $(filter %.cpp,$(CXX_FILES))
