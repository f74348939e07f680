# calla: `make` builds build/calla and nothing else is needed to use it.
#
#   make                     optimised, for this machine's architecture
#   make BACKENDS="ref"      limits the backends that are compiled in
#   make DEBUG=1 | ASAN=1    -O0 -g | AddressSanitizer and UBSan
#   make STATIC=1            no shared library but libc
#   make tests               the unit test programs; `make check` runs them
#   make dist                build/calla-VERSION-ARCH.tar.gz, relocatable
#   BUILD=dir                another build folder, CC=clang another compiler
VERSION  := 0.1.0
BACKENDS ?= ref
BUILD    ?= build$(if $(ASAN),-asan)$(if $(DEBUG),-debug)$(if $(STATIC),-static)
PKG_CONFIG ?= pkg-config
PACKAGES := jansson libutf8proc nettle

CFLAGS   ?= -O3 -g
WARNINGS := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla
# -ffp-contract=off: the same float operations, and so the same bits, on every architecture
override CFLAGS += -std=c17 -D_GNU_SOURCE -pthread -ffp-contract=off -fno-strict-aliasing $(WARNINGS) \
    -Isrc -Iinclude -MMD -MP -DCALLA_VERSION='"$(VERSION)"' $(shell $(PKG_CONFIG) --cflags $(PACKAGES))
LDLIBS   := $(if $(STATIC),$(patsubst -l%,-l:lib%.a,$(shell $(PKG_CONFIG) --static --libs-only-l $(PACKAGES))) -lm,$(shell $(PKG_CONFIG) --libs $(PACKAGES)) -lm) -lpthread
override CFLAGS += $(patsubst %,-DBACKEND_%,$(shell echo $(BACKENDS) | tr a-z A-Z))
ifdef DEBUG
override CFLAGS += -O0
endif
ifdef ASAN
override CFLAGS += -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
override LDFLAGS += -fsanitize=address,undefined
endif

LAYERS   := base model text backend engine library cli
SOURCES  := $(foreach layer,$(LAYERS),$(wildcard src/$(layer)/*.c)) $(foreach b,$(BACKENDS),$(wildcard src/backend/$(b)/*.c))
OBJECTS  := $(SOURCES:src/%.c=$(BUILD)/obj/%.o)
MAIN     := $(BUILD)/obj/cli/main.o
PARTS    := $(filter-out $(MAIN),$(OBJECTS))
TESTS    := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/*/test_*.c))
HELPERS  := $(patsubst tests/%.c,$(BUILD)/obj/tests/%.o,$(wildcard tests/support/*.c))

.PHONY: all tests check clean
all: $(BUILD)/calla

$(BUILD)/calla: $(OBJECTS)
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/libcalla.a: $(PARTS)
	rm -f $@
	$(AR) rcs $@ $^

$(BUILD)/obj/%.o: src/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -c -o $@ $<

$(BUILD)/obj/tests/%.o: tests/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -Itests -c -o $@ $<

# rebuilds everything when the flags or the set of backends change
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CC) $(CFLAGS) $(LDFLAGS) $(BACKENDS)' | cmp -s - $@ || echo '$(CC) $(CFLAGS) $(LDFLAGS) $(BACKENDS)' > $@
FORCE:

tests: $(TESTS)
$(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(HELPERS) $(BUILD)/libcalla.a
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(BUILD)/libcalla.a $(LDLIBS) -lcmocka

check: $(TESTS) $(BUILD)/calla
	@failed=0; for t in $(TESTS); do echo "== $$t"; CALLA=$(BUILD)/calla $$t || failed=1; done; exit $$failed

clean:
	rm -rf $(BUILD)

-include $(OBJECTS:.o=.d) $(patsubst tests/%.c,$(BUILD)/obj/tests/%.d,$(wildcard tests/*/*.c))
