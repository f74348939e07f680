# calla: `make` builds build/calla and nothing else is needed to use it.
#
#   make                     optimised, for this machine's architecture
#   make BACKENDS="ref"      limits the backends that are compiled in
#   make DEBUG=1             -O0 -g
#   make ASAN=1 | TSAN=1     AddressSanitizer and UBSan | ThreadSanitizer
#   make STATIC=1            no shared library but libc
#   make check               builds and runs the unit tests; TESTS="text/test_reply …" only these
#   make check-alloc         the tests that let allocations fail (GNU ld only)
#   make fuzz                build/fuzz/NAME from tests/fuzz/fuzz_NAME.c (clang)
#   make arm                 build/arm/tests/NAME from tests/arm/NAME.c, for arm64, without libraries
#   make bench               build/bench/NAME from bench/NAME.c
#   make examples            build/examples/NAME from examples/NAME.c
#   make pages               build/share: man page and completions, from the program's own tables
#   make library             build/libcalla.a and the shared library, which export calla_* alone
#   make install             all of these, calla.h and calla.pc; PREFIX=/usr/local, DESTDIR=
#   make uninstall           removes what `make install` with the same variables put there
#   make dist                build/calla-VERSION-OS-ARCH.tar.gz, relocatable
#   V=1                      shows whole commands, and what passing tests print
#   BUILD=dir                another build folder, CC=clang another compiler
#
# Works with GNU make 3.81 (macOS) and newer.
VERSION  := 0.1.0
BACKENDS ?= cpu ref
BUILD    ?= build$(if $(ASAN),-asan)$(if $(TSAN),-tsan)$(if $(DEBUG),-debug)$(if $(STATIC),-static)
PKG_CONFIG ?= pkg-config
LIBRARY_PACKAGES := jansson libutf8proc nettle
PACKAGES := $(LIBRARY_PACKAGES) libedit libmicrohttpd # and those that the program alone needs
PREFIX     ?= /usr/local
BINDIR     ?= $(PREFIX)/bin
LIBDIR     ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DATADIR    ?= $(PREFIX)/share
OBJCOPY    ?= objcopy

OS   := $(shell uname -s | tr A-Z a-z | sed 's/darwin/macos/')
ARCH := $(shell uname -m)
say   = $(if $(V),,@printf '  %-5s %s\n' $(1) $(2);) # first words of a quiet recipe line

# Files get their names when they are complete: a tool that is killed leaves a part, which the next
# make would take for the whole.
OUTPUT      = -o $@.part
DONE        = && mv $@.part $@
OBJECT      = -MF $(@:.o=.d).part -MT $@ -c $(OUTPUT)
OBJECT_DONE = && mv $(@:.o=.d).part $(@:.o=.d) $(DONE)

KNOWN_BACKENDS   := $(sort $(notdir $(patsubst %/,%,$(dir $(wildcard src/backend/*/*.c)))))
UNKNOWN_BACKENDS := $(filter-out $(KNOWN_BACKENDS),$(BACKENDS))
ifneq ($(UNKNOWN_BACKENDS),)
$(error BACKENDS: found '$(UNKNOWN_BACKENDS)', wanted names out of '$(KNOWN_BACKENDS)')
endif
ifeq ($(strip $(BACKENDS)),)
$(error BACKENDS: found no name, wanted at least one out of '$(KNOWN_BACKENDS)')
endif
ifneq ($(shell $(PKG_CONFIG) --exists $(PACKAGES) 2>/dev/null && echo yes),yes)
ifeq ($(filter clean uninstall,$(MAKECMDGOALS)),)
$(error libraries are missing (pkg-config finds not all of: $(PACKAGES)); scripts/setup.sh build installs them)
endif
endif

CFLAGS   ?= -O3 -g
WARNINGS := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla
PACKAGE_CFLAGS := $(shell $(PKG_CONFIG) --cflags $(PACKAGES))
SHARED_LIBS    := $(shell $(PKG_CONFIG) --libs $(PACKAGES))
# the same libraries as paths of archives: not every linker understands -l:libNAME.a. libedit's
# archive needs others, which its package names, and libbsd's needs libmd. What libmicrohttpd's needs
# for TLS, which is not used, has no archives in Debian: NO_TLS stands in for it.
STATIC_NAMES   = $(shell $(PKG_CONFIG) --libs-only-l $(if $(filter libedit,$(1)),--static) $(1))
STATIC_LIBS    := $(foreach package,$(PACKAGES),$(patsubst -l%,$(shell $(PKG_CONFIG) \
    --variable=libdir $(package))/lib%.a,$(patsubst -lbsd,-lbsd -lmd,$(call STATIC_NAMES,$(package)))))

# -ffp-contract=off: the same float operations, and so the same bits, on every architecture
# -fPIC: one set of objects for program and libraries; since all symbols but calla_* are hidden, calls
# between them stay direct
override CFLAGS += -std=c17 -D_GNU_SOURCE -pthread -fPIC -fvisibility=hidden -ffp-contract=off -fno-strict-aliasing \
    $(WARNINGS) -Isrc -Iinclude -MMD -MP -DCALLA_VERSION='"$(VERSION)"' $(PACKAGE_CFLAGS)
override CFLAGS += $(patsubst %,-DBACKEND_%,$(shell echo $(BACKENDS) | tr a-z A-Z))
NO_TLS := $(if $(STATIC),$(BUILD)/no_tls.o)
LDLIBS := $(if $(STATIC),$(STATIC_LIBS) $(NO_TLS),$(SHARED_LIBS)) -lm -lpthread
ifdef DEBUG
override CFLAGS += -O0
endif
ifneq ($(ASAN)$(FUZZ),)
override CFLAGS += -fsanitize=address,undefined -fno-sanitize-recover=all \
    -fno-omit-frame-pointer $(if $(FUZZ),-fsanitize=fuzzer-no-link)
override LDFLAGS += -fsanitize=address,undefined
endif
ifdef TSAN
override CFLAGS += -fsanitize=thread
override LDFLAGS += -fsanitize=thread
endif

# A caller's stack may be small (ulimit -s, a thread of the library's user). Sanitizers and -O0 need
# more of it than the program does.
FRAMES := $(if $(ASAN)$(TSAN)$(FUZZ)$(DEBUG),,-Wframe-larger-than=12288)

# The cpu backend's tables are built each for its own instructions, and with fused multiply-adds.
KERNELS            := -ffp-contract=fast
AVX512             := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c
FLAGS_portable     := $(KERNELS) -Wno-psabi
FLAGS_avx2         := $(KERNELS) -mavx2 -mfma -mf16c
FLAGS_avx512       := $(KERNELS) $(AVX512)
FLAGS_avx512vnni   := $(KERNELS) $(AVX512) -mavx512vnni
FLAGS_amx          := $(FLAGS_avx512vnni) -mamx-tile -mamx-int8
FLAGS_neon         := $(KERNELS)
FLAGS_dotprod      := $(KERNELS) -march=armv8.2-a+dotprod
FLAGS_i8mm         := $(KERNELS) -march=armv8.2-a+dotprod+i8mm

LAYERS   := base model text backend engine library server cli
SOURCES  := $(foreach layer,$(LAYERS),$(wildcard src/$(layer)/*.c)) \
    $(foreach backend,$(BACKENDS),$(wildcard src/backend/$(backend)/*.c))
SOURCES  := $(filter-out $(if $(filter x86_64,$(ARCH)),,%_avx2.c %_avx512.c %_avx512vnni.c %_amx.c) \
    $(if $(filter aarch64 arm64,$(ARCH)),,%_neon.c %_dotprod.c %_i8mm.c),$(SOURCES))
OBJECTS  := $(SOURCES:src/%.c=$(BUILD)/obj/%.o)
MAIN     := $(BUILD)/obj/cli/main.o
PARTS    := $(filter-out $(MAIN),$(OBJECTS))
TESTS    := $(patsubst tests/%.c,%,$(sort $(wildcard tests/*/test_*.c)))
ALLOC    := $(patsubst tests/%.c,%,$(sort $(wildcard tests/*/alloc_*.c)))
FUZZERS  := $(patsubst tests/fuzz/fuzz_%.c,%,$(sort $(wildcard tests/fuzz/fuzz_*.c)))
EXAMPLES := $(patsubst examples/%.c,$(BUILD)/examples/%,$(wildcard examples/*.c))
BENCHES  := $(patsubst bench/%.c,$(BUILD)/bench/%,$(wildcard bench/*.c))
# the AVX tables in plain instructions, for tests on CPUs that lack theirs
EMULATED := $(if $(and $(filter x86_64,$(ARCH)),$(filter cpu,$(BACKENDS)),$(wildcard \
    /usr/include/simde/x86/avx512.h /usr/local/include/simde/x86/avx512.h)), \
    $(patsubst %,$(BUILD)/obj/simde/%.o,avx2 avx512 avx512vnni amx))
# alloc.c needs the linker's help: it goes into alloc_* programs only
comma    := ,
GATE     := $(BUILD)/obj/tests/support/alloc.o
HELPERS  := $(filter-out $(GATE),$(patsubst tests/%.c,$(BUILD)/obj/tests/%.o,$(wildcard tests/support/*.c)))
WRAP     := $(patsubst %,-Wl$(comma)--wrap=%,malloc calloc realloc aligned_alloc free strdup asprintf json_loadb)

.PHONY: all pages library install uninstall tests check check-alloc fuzz fuzz-programs arm arm-programs bench examples \
    dist clean FORCE
.DELETE_ON_ERROR:
.SECONDARY: # keeps object files of tests
all: $(BUILD)/calla
	@:

$(BUILD)/calla: $(OBJECTS)
	$(call say,LINK,$@)$(CC) $(LDFLAGS) $(OUTPUT) $(OBJECTS) $(LDLIBS) $(DONE)

# each function of TLS that libmicrohttpd's archive names, as one that fails
NM ?= nm
$(BUILD)/no_tls.o: $(filter %/libmicrohttpd.a,$(STATIC_LIBS))
	@mkdir -p $(@D)
	$(call say,CC,$@)$(NM) -u $< 2>/dev/null | \
	    sed -n 's/^[ U_]*\(gnutls_[a-z0-9_]*\)$$/int \1(void) { return -1; }/p' | sort -u > $(@:.o=.c) && \
	    $(CC) -fPIC -c $(OUTPUT) $(@:.o=.c) $(DONE)
$(BUILD)/calla $(BUILD)/internal.a $(BUILD)/libcalla.a: | $(NO_TLS)

# everything but main, with its inner names: what tests and benches link
$(BUILD)/internal.a: $(PARTS)
	$(call say,AR,$@)rm -f $@.part && $(AR) rcs $@.part $(PARTS) $(DONE)

# The libraries: all layers but server and cli. Before 1.0 a minor version may change the interface, so it is
# part of the shared library's name.
LIBRARY  := $(filter-out $(BUILD)/obj/server/% $(BUILD)/obj/cli/%,$(OBJECTS))
ABI      := $(basename $(VERSION))
ifeq ($(OS),macos) # untested
SHARED_NAME := libcalla.$(ABI).dylib
SHARED_FILE := libcalla.$(VERSION).dylib
SHARED_LINK := libcalla.dylib
SHARED_FLAGS = -dynamiclib -install_name $(LIBDIR)/$(SHARED_NAME) -compatibility_version $(ABI) \
    -current_version $(VERSION)
# ld -r makes hidden symbols local by itself
HIDE_NAMES  := :
else
SHARED_NAME := libcalla.so.$(ABI)
SHARED_FILE := libcalla.so.$(VERSION)
SHARED_LINK := libcalla.so
SHARED_FLAGS = -shared -Wl,-soname,$(SHARED_NAME) $(if $(ASAN)$(TSAN),,-Wl,-z,defs)
HIDE_NAMES  := $(OBJCOPY) --localize-hidden
endif
library: $(BUILD)/libcalla.a $(BUILD)/$(SHARED_LINK)
	@:

$(BUILD)/libcalla.a: $(LIBRARY)
	$(call say,AR,$@)$(CC) -r -nostdlib -o $(BUILD)/libcalla.o $(LIBRARY) && \
	    $(HIDE_NAMES) $(BUILD)/libcalla.o && rm -f $@.part && $(AR) rcs $@.part $(BUILD)/libcalla.o $(DONE)

$(BUILD)/$(SHARED_FILE): $(LIBRARY)
	$(call say,LINK,$@)$(CC) $(LDFLAGS) $(SHARED_FLAGS) $(OUTPUT) $(LIBRARY) \
	    $(shell $(PKG_CONFIG) --libs $(LIBRARY_PACKAGES)) -lm -lpthread $(DONE)

$(BUILD)/$(SHARED_LINK): $(BUILD)/$(SHARED_FILE)
	@ln -sf $(SHARED_FILE) $(BUILD)/$(SHARED_NAME) && ln -sf $(SHARED_NAME) $@

# paths below the prefix are written with it, so that pkg-config --define-prefix can move them
$(BUILD)/calla.pc: packaging/calla.pc.in FORCE
	@sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR:$(PREFIX)/%=$${prefix}/%)|' \
	    -e 's|@INCLUDEDIR@|$(INCLUDEDIR:$(PREFIX)/%=$${prefix}/%)|' -e 's|@VERSION@|$(VERSION)|' \
	    -e 's|@PACKAGES@|$(LIBRARY_PACKAGES)|' $< > $@

# the generators read what the program says of its commands, so it must run here
PAGES := $(addprefix $(BUILD)/share/,calla.1 calla.bash _calla calla.fish)
pages: $(PAGES)
	@:
$(BUILD)/share/table.tsv: $(BUILD)/calla
	@mkdir -p $(@D)
	@$(BUILD)/calla --help-table > $@.part $(DONE)
$(PAGES): $(BUILD)/share/%: packaging/%.awk packaging/table.awk $(BUILD)/share/table.tsv
	$(call say,AWK,$@)awk -v version=$(VERSION) -f packaging/table.awk -f $< $(BUILD)/share/table.tsv > $@.part $(DONE)

# what is installed, as MODE:FILE:PLACE; the mode "link" makes a symbolic link to the name FILE
DOCDIR := $(DATADIR)/doc/calla
PLACES := 755:$(BUILD)/calla:$(BINDIR)/calla 644:include/calla.h:$(INCLUDEDIR)/calla.h \
    644:$(BUILD)/libcalla.a:$(LIBDIR)/libcalla.a 755:$(BUILD)/$(SHARED_FILE):$(LIBDIR)/$(SHARED_FILE) \
    link:$(SHARED_FILE):$(LIBDIR)/$(SHARED_NAME) link:$(SHARED_NAME):$(LIBDIR)/$(SHARED_LINK) \
    644:$(BUILD)/calla.pc:$(LIBDIR)/pkgconfig/calla.pc \
    644:$(BUILD)/share/calla.1:$(DATADIR)/man/man1/calla.1 \
    644:$(BUILD)/share/calla.bash:$(DATADIR)/bash-completion/completions/calla \
    644:$(BUILD)/share/_calla:$(DATADIR)/zsh/site-functions/_calla \
    644:$(BUILD)/share/calla.fish:$(DATADIR)/fish/vendor_completions.d/calla.fish \
    644:LICENSE:$(DOCDIR)/LICENSE \
    $(foreach file,$(wildcard licenses/*),644:$(file):$(DOCDIR)/$(file))
EACH_PLACE := for entry in $(PLACES); do mode=$${entry%%:*} place=$(DESTDIR)$${entry\#\#*:}; \
    file=$${entry\#*:}; file=$${file%:*};

install: all library pages $(BUILD)/calla.pc
	$(call say,INST,$(DESTDIR)$(PREFIX))set -e; $(EACH_PLACE) mkdir -p "$${place%/*}"; \
	    if [ $$mode = link ]; then ln -sf "$$file" "$$place"; \
	    else install -m $$mode "$$file" "$$place"; fi; done

# folders that others use too stay, even when they are empty
uninstall:
	@$(EACH_PLACE) rm -f "$$place"; done
	@rmdir "$(DESTDIR)$(DOCDIR)/licenses" "$(DESTDIR)$(DOCDIR)" 2>/dev/null || :

$(BUILD)/obj/%.o: src/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)$(CC) $(CFLAGS) $(FRAMES) $(FLAGS_$(*F:kernels_%=%)) $(OBJECT) $< $(OBJECT_DONE)

$(BUILD)/obj/tests/%.o: tests/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)$(CC) $(CFLAGS) -Itests $(OBJECT) $< $(OBJECT_DONE)

# tests/support/simde in front of the compiler's own <immintrin.h>, and another name for the table
$(BUILD)/obj/simde/%.o: src/backend/cpu/kernels_%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$< with SIMDe)$(CC) $(CFLAGS) $(KERNELS) -Wno-psabi -Itests/support/simde \
	    -Dkernels_$*=simde_$* $(OBJECT) $< $(OBJECT_DONE)

$(BUILD)/obj/bench/%.o: bench/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)$(CC) $(CFLAGS) $(OBJECT) $< $(OBJECT_DONE)

# rebuilds everything when the flags or the set of backends change
FLAGS := $(CC) $(CFLAGS) $(LDFLAGS) $(LDLIBS) $(BACKENDS)
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(FLAGS)' | cmp -s - $@ || echo '$(FLAGS)' > $@
FORCE:

REPLAY_SERVER := $(BUILD)/tests/server/replay_server # for the end-to-end tests
tests: $(TESTS:%=$(BUILD)/tests/%) $(REPLAY_SERVER)
$(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(HELPERS) $(BUILD)/internal.a
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CC) $(LDFLAGS) $(OUTPUT) $< $(HELPERS) $(BUILD)/internal.a $(LDLIBS) -lcmocka $(DONE)

OP_TESTS := $(filter $(BUILD)/tests/backend/test_cpu_%,$(TESTS:%=$(BUILD)/tests/%))
$(OP_TESTS): $(EMULATED)
$(OP_TESTS): override LDFLAGS += $(EMULATED)

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
$(FUZZERS:%=$(BUILD)/%): $(BUILD)/%: $(BUILD)/obj/tests/fuzz/fuzz_%.o $(HELPERS) $(BUILD)/internal.a
	$(call say,LINK,$@)$(CC) $(LDFLAGS) -fsanitize=fuzzer $(OUTPUT) $< $(HELPERS) $(BUILD)/internal.a \
	    $(LDLIBS) -lcmocka $(DONE)

# Static programs for arm64, by a cross compiler elsewhere: of the sources that need no library.
ARM_CC       ?= $(if $(filter aarch64 arm64,$(ARCH)),$(CC),aarch64-linux-gnu-gcc)
ARM_PROGRAMS := $(patsubst tests/arm/%.c,$(BUILD)/tests/%,$(wildcard tests/arm/*.c))
PLAIN_BASE   := bytes cgroup clock cpu error file_map json_reader memory threads utf8
PLAIN        := $(PLAIN_BASE:%=base/%) model/quant model/shape model/synth model/weights \
    engine/divergence $(patsubst src/%.c,%,$(filter src/backend/%,$(SOURCES)))
arm:
	@$(MAKE) --no-print-directory ARCH=aarch64 CC=$(ARM_CC) BUILD=build/arm arm-programs
arm-programs: $(ARM_PROGRAMS)
# gcc 12 fails on them with an internal error else
$(BUILD)/obj/tests/arm/%.o: override CFLAGS += -fno-tree-vectorize
$(ARM_PROGRAMS): $(BUILD)/tests/%: $(BUILD)/obj/tests/arm/%.o $(PLAIN:%=$(BUILD)/obj/%.o)
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CC) $(LDFLAGS) -static $(OUTPUT) $^ -lm -lpthread $(DONE)

bench: $(BENCHES)
$(BUILD)/bench/%: $(BUILD)/obj/bench/%.o $(BUILD)/internal.a
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CC) $(LDFLAGS) $(OUTPUT) $< $(BUILD)/internal.a $(LDLIBS) $(DONE)

# as a user of the library builds them
examples: $(EXAMPLES)
$(BUILD)/examples/%: examples/%.c include/calla.h $(BUILD)/libcalla.a
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CC) -std=c99 -O2 -Wall -Wextra -Wpedantic -Werror -Iinclude $(LDFLAGS) $(OUTPUT) $< \
	    $(BUILD)/libcalla.a $(LDLIBS) $(DONE)

# the static program, its man page, completions, licences and the shipped model without the vectors for tests
DIST := calla-$(VERSION)-$(OS)-$(ARCH)
dist:
	@$(MAKE) --no-print-directory STATIC=1 BUILD=build-static all pages
	@rm -rf build/dist && mkdir -p build/dist/$(DIST)/models/tiny build/dist/$(DIST)/share
	@cp $(PAGES:$(BUILD)/%=build-static/%) build/dist/$(DIST)/share
	@cp -R build-static/calla licenses $(wildcard LICENSE* README.md) build/dist/$(DIST)
	@cp $(filter-out %/reference,$(wildcard models/tiny/*)) build/dist/$(DIST)/models/tiny
	@strip build/dist/$(DIST)/calla
	$(call say,TAR,build/$(DIST).tar.gz)COPYFILE_DISABLE=1 tar -czf build/$(DIST).tar.gz -C build/dist $(DIST)

clean:
	rm -rf $(BUILD)

-include $(OBJECTS:.o=.d) $(EMULATED:.o=.d) $(patsubst %.c,$(BUILD)/obj/%.d,$(wildcard tests/*/*.c bench/*.c))
