# Verbatim. `make` builds build/verbatim; `make demo` shows it; `make test` proves it. `make help` lists the rest.

CC      ?= gcc
BUILD   ?= build
OPT     ?= -O2
CFLAGS  ?= -g
SANITIZE ?=
ARCH    := $(shell $(CC) -dumpmachine | cut -d- -f1)

# `make V=1` shows the commands.
Q := $(if $(V),,@)
say = $(if $(V),,@echo '  $(1)')

# -ffp-contract=off is part of the arithmetic contract: a*b+c never becomes one rounding unless the code says fma.
BASE    := -std=c11 -D_GNU_SOURCE $(OPT) -ffp-contract=off -fno-strict-aliasing -fopenmp \
           -fPIC -fno-semantic-interposition -fvisibility=hidden \
           -Wall -Wextra -Wshadow -Wpointer-arith -Wstrict-prototypes -Werror -iquote . -MMD -MP $(SANITIZE)
LIBS    := -lsleef -lpcre2-8 -ljansson -lmd -lm

# Without libnuma all is built but --numa, which then says so.
HAVE_NUMA := $(shell echo 'int main(void) { return numa_available(); }' | \
               $(CC) $(CFLAGS) -include numa.h -x c -o /dev/null - -lnuma 2>/dev/null && echo yes)
ifeq ($(HAVE_NUMA),yes)
BASE    += -DHAVE_NUMA
LIBS    += -lnuma
endif

# Without libedit the command reads lines as they come.
HAVE_LIBEDIT := $(shell echo 'int main(void) { return !readline(""); }' | $(CC) $(CFLAGS) -include stdio.h -include editline/readline.h \
                  -x c -o /dev/null - -ledit 2>/dev/null && echo yes)
ifeq ($(HAVE_LIBEDIT),yes)
FLAGS_OF_line := -DHAVE_LIBEDIT
EDIT    := -ledit
endif

# These files call fmaf. Everything else except the vector files runs on any x86-64 CPU: on one without fma the program can read a
# model and say what the CPU lacks.
CALLS_FMA := simd/scalar.c ops/attention.c ops/gqa.c ops/router.c
# simd/avx2*.c, avx512*.c and neon*.c belong to one architecture; the rest of simd/ to all.
SIMD    := $(filter-out simd/avx% simd/neon%,$(wildcard simd/*.c))
ifeq ($(ARCH),x86_64)
SIMD    += $(wildcard simd/avx2*.c simd/avx512*.c)
FLAGS_OF_fma    := -mfma
FLAGS_OF_avx2   := -mavx2 -mfma -mf16c
FLAGS_OF_avx512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c
FLAGS_OF_avx512_bf16 := -mavx512bf16
FLAGS_OF_avx512_vnni := -mavx512vnni
endif
# The compiler makes the vectors of element-wise loops (simd/elementwise.h) and of narrow_chunks; gcc 12 has to be asked.
VECTORS := $(if $(findstring clang,$(shell $(CC) --version)),,-ftree-vectorize -fvect-cost-model=dynamic)
ifeq ($(ARCH),aarch64)
SIMD    += $(wildcard simd/neon*.c)
FLAGS_OF_neon_dotprod := -march=armv8.2-a+dotprod
endif

# oneDNN is loaded when it is asked for (ops/onednn.h): the build wants its header, of version 2, and no library.
ifndef ONEDNN
ONEDNN  := $(shell printf '\043include <dnnl.h>\n\043if DNNL_VERSION_MAJOR != 2\n\043error\n\043endif\n' | $(CC) -E -x c - >/dev/null 2>&1 \
             && echo yes || echo no)
endif
FLAGS_OF_onednn := $(if $(filter yes,$(ONEDNN)),-DVB_ONEDNN)

LIB_SRC   := $(wildcard engine/*.c engine/*/*.c ops/*.c) $(SIMD)
REF_SRC   := $(wildcard reference/*.c)
TOOL_SRC  := $(filter-out tools/train/%,$(wildcard tools/*.c tools/*/*.c))
LIB_OBJ   := $(LIB_SRC:%.c=$(BUILD)/%.o)
REF_OBJ   := $(REF_SRC:%.c=$(BUILD)/%.o)
TOOL_OBJ  := $(TOOL_SRC:%.c=$(BUILD)/%.o)

.PHONY: all demo test test-all checkasm checkasm-bench golden asan ubsan fuzz layers fmt clean help deps
all: $(BUILD)/verbatim $(BUILD)/libverbatim.so.0 $(BUILD)/sleef.ok

help:
	@sed -n 's/^## //p' Makefile

## make                 build/verbatim, build/libverbatim.a and build/libverbatim.so.0
## make deps            install the Debian packages that are missing (asks for sudo only when not root)
## make demo            build, then run the main job on the bundled model
## make check           before a commit: a minute of the tests, installs nothing
## make test            the tests, about twelve minutes on two cores; make test-all: the full products as well
## make checkasm        kernels: equal bits on every instruction set; checkasm-bench times them
## make asan|ubsan      the named subset of the tests under a sanitizer; make arm64: on Arm, under qemu
## make older-cpus      without AVX-512, and without FMA, under qemu: what works there does, the rest is refused
## make mistakes        named mistakes, each switched on: does the test that must notice it?
## make crossbuild      gcc and clang, -O0 and -O3: the golden bits
## make fuzz            time-boxed fuzzing of what parses files
## make docs            are the documents true? names, links, the commands of the tour
## make layers          who includes and calls whom, against tools/scripts/layers.table
## make fmt             format the lines changed since the last commit (needs clang-format-19)
## make golden          make the goldens again (needs Python; see golden/README.md)
## make install         the command, libraries, header, manual; PREFIX=/usr/local, DESTDIR; make uninstall

flags = $(BASE) $(CFLAGS) $(if $(filter simd/%,$<),$(if $(filter simd/scalar.c,$<),,$(VECTORS))) $(if $(filter simd/avx2%,$<),$(FLAGS_OF_avx2)) $(if $(filter simd/avx512%,$<),$(FLAGS_OF_avx512)) \
        $(if $(filter simd/avx512_bf16.c,$<),$(FLAGS_OF_avx512_bf16)) $(if $(filter simd/avx512_vnni%,$<),$(FLAGS_OF_avx512_vnni)) \
        $(if $(filter simd/neon_dotprod.c,$<),$(FLAGS_OF_neon_dotprod)) \
        $(if $(filter $(CALLS_FMA),$<),$(FLAGS_OF_fma)) \
        $(if $(filter ops/onednn.c,$<),$(FLAGS_OF_onednn)) $(if $(filter tools/cli/line.c,$<),$(FLAGS_OF_line))

$(BUILD)/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(call say,CC $<)
	$(Q)$(CC) $(flags) -c -o $@ $<

# built again when the answer changes
ifneq ($(shell cat $(BUILD)/onednn.found 2>/dev/null),$(ONEDNN))
$(shell mkdir -p $(BUILD) && echo $(ONEDNN) >$(BUILD)/onednn.found)
endif
$(BUILD)/ops/onednn.o: $(BUILD)/onednn.found

$(BUILD)/libverbatim.a: $(LIB_OBJ)
	$(call say,AR $@)
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/libreference.a: $(REF_OBJ)
	$(call say,AR $@)
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/verbatim: $(TOOL_OBJ) $(BUILD)/libreference.a $(BUILD)/libverbatim.a
	$(call say,LD $@)
	$(Q)$(CC) $(BASE) $(CFLAGS) -o $@ $^ $(LIBS) $(EDIT)

# Another SLEEF with other bits is refused when the program is built, in one sentence.
$(BUILD)/sleef.ok: $(BUILD)/tests/sleef_hash
	$(Q)$(RUNNER) $< && touch $@

$(BUILD)/tools/trace/html.o: tools/trace/trace.html

include tests/tests.mk
include tools/install.mk

-include $(LIB_OBJ:.o=.d) $(REF_OBJ:.o=.d) $(TOOL_OBJ:.o=.d) $(wildcard $(BUILD)/tests/*.d $(BUILD)/tests/*/*.d)

deps:
	tools/scripts/install-deps.sh

demo: deps
	$(MAKE) all
	tools/scripts/demo.sh

golden:
	golden/scripts/make-all.sh

# FMT_SINCE=main: what a branch changed
FMT_SINCE ?= HEAD
fmt:
	@command -v git-clang-format-19 >/dev/null || { echo "make fmt needs clang-format-19 (apt-get install clang-format-19)" >&2; exit 1; }
	git clang-format-19 --force --binary clang-format-19 --style file $(FMT_SINCE) || [ $$? -eq 1 ] # 1: it changed lines

clean:
	rm -rf $(BUILD) build-*
