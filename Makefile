# calla: `make` builds build/calla and nothing else is needed to use it.
#
#   make                     optimised, for this machine's architecture
#   make BACKENDS="ref"      limits the backends that are compiled in
#   make DEBUG=1 | ASAN=1    -O0 -g | AddressSanitizer and UBSan
#   make STATIC=1            no shared library but libc
#   make check               builds and runs the unit tests; TESTS="text/test_reply …" only these
#   make check-alloc         the tests that let allocations fail (GNU ld only)
#   make fuzz                build/fuzz/NAME from tests/fuzz/fuzz_NAME.c (clang)
#   make bench               build/bench/NAME from bench/NAME.c
#   make dist                build/calla-VERSION-OS-ARCH.tar.gz, relocatable
#   V=1                      shows whole commands, and what passing tests print
#   BUILD=dir                another build folder, CC=clang another compiler
#
# Works with GNU make 3.81 (macOS) and newer.
VERSION  := 0.1.0
BACKENDS ?= cpu ref
BUILD    ?= build$(if $(ASAN),-asan)$(if $(DEBUG),-debug)$(if $(STATIC),-static)
PKG_CONFIG ?= pkg-config
PACKAGES := jansson libutf8proc nettle

OS   := $(shell uname -s | tr A-Z a-z | sed 's/darwin/macos/')
ARCH := $(shell uname -m)
say   = $(if $(V),,@printf '  %-5s %s\n' $(1) $(2);) # first words of a quiet recipe line

KNOWN_BACKENDS   := $(sort $(notdir $(patsubst %/,%,$(dir $(wildcard src/backend/*/*.c)))))
UNKNOWN_BACKENDS := $(filter-out $(KNOWN_BACKENDS),$(BACKENDS))
ifneq ($(UNKNOWN_BACKENDS),)
$(error BACKENDS: found '$(UNKNOWN_BACKENDS)', wanted names out of '$(KNOWN_BACKENDS)')
endif
ifeq ($(strip $(BACKENDS)),)
$(error BACKENDS: found no name, wanted at least one out of '$(KNOWN_BACKENDS)')
endif
ifneq ($(shell $(PKG_CONFIG) --exists $(PACKAGES) 2>/dev/null && echo yes),yes)
ifeq ($(filter clean,$(MAKECMDGOALS)),)
$(error libraries are missing (pkg-config finds not all of: $(PACKAGES)); scripts/setup.sh build installs them)
endif
endif

CFLAGS   ?= -O3 -g
WARNINGS := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla
PACKAGE_CFLAGS := $(shell $(PKG_CONFIG) --cflags $(PACKAGES))
SHARED_LIBS    := $(shell $(PKG_CONFIG) --libs $(PACKAGES))
# the same libraries as paths of archives: not every linker understands -l:libNAME.a
STATIC_LIBS    := $(foreach package,$(PACKAGES),$(patsubst -l%,$(shell $(PKG_CONFIG) \
    --variable=libdir $(package))/lib%.a,$(shell $(PKG_CONFIG) --libs-only-l $(package))))

# -ffp-contract=off: the same float operations, and so the same bits, on every architecture
override CFLAGS += -std=c17 -D_GNU_SOURCE -pthread -ffp-contract=off -fno-strict-aliasing \
    $(WARNINGS) -Isrc -Iinclude -MMD -MP -DCALLA_VERSION='"$(VERSION)"' $(PACKAGE_CFLAGS)
override CFLAGS += $(patsubst %,-DBACKEND_%,$(shell echo $(BACKENDS) | tr a-z A-Z))
LDLIBS := $(if $(STATIC),$(STATIC_LIBS),$(SHARED_LIBS)) -lm -lpthread
ifdef DEBUG
override CFLAGS += -O0
endif
ifneq ($(ASAN)$(FUZZ),)
override CFLAGS += -fsanitize=address,undefined -fno-sanitize-recover=all \
    -fno-omit-frame-pointer $(if $(FUZZ),-fsanitize=fuzzer-no-link)
override LDFLAGS += -fsanitize=address,undefined
endif

# The cpu backend's tables are built each for its own instructions, and with fused multiply-adds.
KERNELS            := -ffp-contract=fast
AVX512             := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c
FLAGS_portable     := $(KERNELS) -Wno-psabi
FLAGS_avx2         := $(KERNELS) -mavx2 -mfma -mf16c
FLAGS_avx512       := $(KERNELS) $(AVX512)
FLAGS_avx512vnni   := $(KERNELS) $(AVX512) -mavx512vnni

LAYERS   := base model text backend engine library cli
SOURCES  := $(foreach layer,$(LAYERS),$(wildcard src/$(layer)/*.c)) \
    $(foreach backend,$(BACKENDS),$(wildcard src/backend/$(backend)/*.c))
SOURCES  := $(filter-out $(if $(filter x86_64,$(ARCH)),,%_avx2.c %_avx512.c %_avx512vnni.c),$(SOURCES))
OBJECTS  := $(SOURCES:src/%.c=$(BUILD)/obj/%.o)
MAIN     := $(BUILD)/obj/cli/main.o
PARTS    := $(filter-out $(MAIN),$(OBJECTS))
TESTS    := $(patsubst tests/%.c,%,$(sort $(wildcard tests/*/test_*.c)))
ALLOC    := $(patsubst tests/%.c,%,$(sort $(wildcard tests/*/alloc_*.c)))
FUZZERS  := $(patsubst tests/fuzz/fuzz_%.c,%,$(sort $(wildcard tests/fuzz/fuzz_*.c)))
BENCHES  := $(patsubst bench/%.c,$(BUILD)/bench/%,$(wildcard bench/*.c))
# alloc.c needs the linker's help: it goes into alloc_* programs only
comma    := ,
GATE     := $(BUILD)/obj/tests/support/alloc.o
HELPERS  := $(filter-out $(GATE),$(patsubst tests/%.c,$(BUILD)/obj/tests/%.o,$(wildcard tests/support/*.c)))
WRAP     := $(patsubst %,-Wl$(comma)--wrap=%,malloc calloc realloc free strdup asprintf json_loadb)

.PHONY: all tests check check-alloc fuzz fuzz-programs bench dist clean FORCE
.SECONDARY: # keeps object files of tests
all: $(BUILD)/calla
	@:

$(BUILD)/calla: $(OBJECTS)
	$(call say,LINK,$@)$(CC) $(LDFLAGS) -o $@ $(OBJECTS) $(LDLIBS)

$(BUILD)/libcalla.a: $(PARTS)
	$(call say,AR,$@)rm -f $@ && $(AR) rcs $@ $(PARTS)

$(BUILD)/obj/%.o: src/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)$(CC) $(CFLAGS) $(FLAGS_$(*F:kernels_%=%)) -c -o $@ $<

$(BUILD)/obj/tests/%.o: tests/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)$(CC) $(CFLAGS) -Itests -c -o $@ $<

$(BUILD)/obj/bench/%.o: bench/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)$(CC) $(CFLAGS) -c -o $@ $<

# rebuilds everything when the flags or the set of backends change
FLAGS := $(CC) $(CFLAGS) $(LDFLAGS) $(LDLIBS) $(BACKENDS)
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(FLAGS)' | cmp -s - $@ || echo '$(FLAGS)' > $@
FORCE:

tests: $(TESTS:%=$(BUILD)/tests/%)
$(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(HELPERS) $(BUILD)/libcalla.a
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CC) $(LDFLAGS) -o $@ $< $(HELPERS) $(BUILD)/libcalla.a $(LDLIBS) -lcmocka

check: tests $(BUILD)/calla
	@CALLA=$(BUILD)/calla V=$(V) sh tests/run_programs.sh $(TESTS:%=$(BUILD)/tests/%)

ifeq ($(OS),linux)
$(ALLOC:%=$(BUILD)/tests/%): $(GATE)
$(ALLOC:%=$(BUILD)/tests/%): override LDFLAGS += $(GATE) $(WRAP)
check-alloc: $(ALLOC:%=$(BUILD)/tests/%) $(BUILD)/calla
	@CALLA=$(BUILD)/calla V=$(V) sh tests/run_programs.sh $(ALLOC:%=$(BUILD)/tests/%)
else
check-alloc:
	@echo "check-alloc: this linker has no --wrap"; echo "0 passed, 0 failed, $(words $(ALLOC)) skipped"
endif

# objects of their own: all of them carry the fuzzer's coverage counters
fuzz:
	@$(MAKE) --no-print-directory CC=$(if $(filter cc,$(CC)),clang,$(CC)) BUILD=build/fuzz FUZZ=1 fuzz-programs
fuzz-programs: $(FUZZERS:%=$(BUILD)/%)
$(FUZZERS:%=$(BUILD)/%): $(BUILD)/%: $(BUILD)/obj/tests/fuzz/fuzz_%.o $(HELPERS) $(BUILD)/libcalla.a
	$(call say,LINK,$@)$(CC) $(LDFLAGS) -fsanitize=fuzzer -o $@ $< $(HELPERS) $(BUILD)/libcalla.a \
	    $(LDLIBS) -lcmocka

bench: $(BENCHES)
$(BUILD)/bench/%: $(BUILD)/obj/bench/%.o $(BUILD)/libcalla.a
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CC) $(LDFLAGS) -o $@ $< $(BUILD)/libcalla.a $(LDLIBS)

# the static program, its licences and the shipped model without the vectors for tests
DIST := calla-$(VERSION)-$(OS)-$(ARCH)
dist:
	@$(MAKE) --no-print-directory STATIC=1 BUILD=build-static all
	@rm -rf build/dist && mkdir -p build/dist/$(DIST)/models/tiny
	@cp -R build-static/calla licenses $(wildcard LICENSE* README.md) build/dist/$(DIST)
	@cp $(filter-out %/reference,$(wildcard models/tiny/*)) build/dist/$(DIST)/models/tiny
	@strip build/dist/$(DIST)/calla
	$(call say,TAR,build/$(DIST).tar.gz)COPYFILE_DISABLE=1 tar -czf build/$(DIST).tar.gz -C build/dist $(DIST)

clean:
	rm -rf $(BUILD)

-include $(OBJECTS:.o=.d) $(patsubst %.c,$(BUILD)/obj/%.d,$(wildcard tests/*/*.c bench/*.c))
