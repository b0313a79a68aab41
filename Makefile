# Verbatim. `make` builds build/verbatim; `make demo` shows it; `make test` proves it. `make help` lists the rest.

CC      ?= gcc
BUILD   ?= build
OPT     ?= -O2
CFLAGS  ?= -g
SANITIZE ?=
# `make WERROR=1`: a warning is an error, as in `make test`. Other compilers may warn of more.
WERROR  ?=
ARCH    := $(shell $(CC) -dumpmachine | cut -d- -f1)

# `make V=1` shows the commands.
Q := $(if $(V),,@)
say = $(if $(V),,@echo '  $(1)')

# -ffp-contract=off is part of the arithmetic contract: a*b+c never becomes one rounding unless the code says fma.
BASE    := -std=c11 -D_GNU_SOURCE $(OPT) -ffp-contract=off -fno-strict-aliasing -fopenmp \
           -fPIC -fno-semantic-interposition -fvisibility=hidden \
           -Wall -Wextra -Wshadow -Wpointer-arith -Wstrict-prototypes $(if $(WERROR),-Werror) -iquote . -MMD -MP $(SANITIZE)
comma   := ,
LIBS    := -lsleef -lpcre2-8 -ljansson -lmd -lm

# Files of these patterns are compiled without optimisation, in builds in which their speed does not matter. Without it, gcc knows
# less of the lengths of strings, and warns of more.
UNOPTIMISED ?=
IS_CLANG := $(findstring clang,$(shell $(CC) --version))
# These files are almost only inlined functions. gcc -O0 takes ten times as long for them as gcc -O1, three quarters of a minute for each.
INLINED := $(if $(IS_CLANG),,simd/%_open.c)
unoptimised = $(if $(filter-out $(INLINED),$(filter $(UNOPTIMISED),$1)),-O0 $(if $(IS_CLANG),,-Wno-format-overflow -Wno-format-truncation)) \
              $(if $(and $(filter -O0,$(OPT)),$(filter $(INLINED),$1)),-O1)

# What one file is compiled with beyond BASE is said here and below as `$(BUILD)/FILE.o: private FLAGS += ...`.
FLAGS   :=

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
EDIT    := -ledit
$(BUILD)/tools/cli/line.o: private FLAGS += -DHAVE_LIBEDIT
endif

# Without libmicrohttpd all is built but `serve`, which then says so.
HAVE_MICROHTTPD := $(shell echo 'int main(void) { return !MHD_get_version(); }' | $(CC) $(CFLAGS) -include microhttpd.h -x c -o /dev/null - \
                     -lmicrohttpd 2>/dev/null && echo yes)
ifeq ($(HAVE_MICROHTTPD),yes)
HTTP    := -lmicrohttpd
$(BUILD)/tools/serve/%.o: private FLAGS += -DHAVE_MICROHTTPD
endif

# The compiler makes the vectors of element-wise loops (simd/elementwise.h, RMSNorm, RoPE, rounding, the indexer, gradients) and of narrow_chunks; gcc 12 has to be asked.
VECTORS := $(if $(IS_CLANG),,-ftree-vectorize -fvect-cost-model=dynamic)
$(BUILD)/simd/%.o $(BUILD)/ops/backward/%.o $(BUILD)/ops/indexer.o $(BUILD)/ops/rmsnorm.o $(BUILD)/ops/rope.o $(BUILD)/ops/round.o: private FLAGS += $(VECTORS)
$(BUILD)/simd/scalar.o: private FLAGS :=

# simd/avx2*.c, avx512*.c and neon*.c belong to one architecture; the rest of simd/ to all.
SETS_OF_x86_64  := avx2 avx512
SETS_OF_aarch64 := neon
files_of = $(wildcard $(1:%=simd/%*.c))
SIMD    := $(filter-out $(call files_of,$(SETS_OF_x86_64) $(SETS_OF_aarch64)),$(wildcard simd/*.c)) $(call files_of,$(SETS_OF_$(ARCH)))
ifeq ($(ARCH),x86_64)
# Files that call fmaf. Everything else except the vector files runs on any x86-64 CPU: on one without fma the program can read
# a model and say what the CPU lacks.
$(patsubst %.c,$(BUILD)/%.o,simd/scalar.c $(shell grep -lw fmaf ops/*.c ops/*/*.c)): private FLAGS += -mfma
$(BUILD)/simd/avx2.o $(BUILD)/simd/avx2_%.o: private FLAGS += -mavx2 -mfma -mf16c
$(BUILD)/simd/avx512.o $(BUILD)/simd/avx512_%.o: private FLAGS += -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c
$(BUILD)/simd/avx512_bf16.o $(BUILD)/simd/avx512_bf16_%.o: private FLAGS += -mavx512bf16
$(BUILD)/simd/avx512_vnni.o $(BUILD)/simd/avx512_vnni_%.o: private FLAGS += -mavx512vnni
endif
# The library promises to compute on a stack of 64 KB (engine/verbatim.h): no frame above a quarter of it, and a stack that is too
# small for it ends at its guard page, not in somebody else's memory. What opens or saves files has a megabyte. Frames of code
# that is not optimised or has a sanitizer's checks are as large as they are.
OPENS_FILES := engine/files/checkpoint_fingerprint.c engine/model/numa.c engine/model/topology.c engine/session/load.c engine/session/save.c
frame_limit = -Wframe-larger-than=$(if $(filter $(OPENS_FILES),$1),32768,16384)
stack_flags = -fstack-clash-protection $(if $(SANITIZE)$(filter -O0,$(OPT)),,$(frame_limit))
# Debugging information on the variables of the vector files, whose loops are unrolled, would take as long as compiling them.
library_flags = $(if $(filter engine/% ops/% simd/%,$1),$(stack_flags)) $(if $(and $(GUIDED),$(filter simd/%,$1)),-fno-sanitize=all) \
                $(if $(filter simd/avx% simd/neon%,$1),$(UNCHECKED_VECTORS) $(if $(filter -g,$(CFLAGS)),-g1))
ifeq ($(ARCH),aarch64)
$(BUILD)/simd/neon_dotprod.o: private FLAGS += -march=armv8.2-a+dotprod
$(BUILD)/simd/neon_i8mm.o: private FLAGS += -march=armv8.2-a+dotprod+i8mm
endif

# oneDNN is loaded when it is asked for (ops/onednn.h): the build wants its header, of version 2, and no library.
ifndef ONEDNN
ONEDNN  := $(shell printf '\043include <dnnl.h>\n\043if DNNL_VERSION_MAJOR != 2\n\043error\n\043endif\n' | $(CC) -E -x c - >/dev/null 2>&1 \
             && echo yes || echo no)
endif
$(BUILD)/ops/onednn.o: private FLAGS += $(if $(filter yes,$(ONEDNN)),-DVB_ONEDNN)

# verbatim-mpi and verbatim-mpich compute one model in several processes, if Open MPI or MPICH is there. Their binaries differ.
# A library for another architecture does not count. MPI=no: neither is built.
PC_OF_mpi   := ompi-c
PC_OF_mpich := mpich
mpi_links = $(shell pkg-config --exists $(PC_OF_$1) 2>/dev/null && echo 'int main(void) { return MPI_Init(0, 0); }' | \
              $(CC) $(CFLAGS) -include mpi.h -x c -o /dev/null - $$(pkg-config --cflags --libs $(PC_OF_$1)) 2>/dev/null && echo $1)
MPIS    := $(if $(filter no,$(MPI)),,$(foreach m,mpi mpich,$(call mpi_links,$m)))

# `make CUDA=yes` compiles the kernels for GPUs with nvcc, into one fatbin that becomes a part of the library. Names of a file's own are in a namespace. It has code for each kind of GPU from
# sm_80 on that this nvcc knows, and PTX for later kinds and for others, which have no tensor cores that the kernels can use. Nothing of CUDA is linked. Arithmetic: docs/ARITHMETIC.md, "On a GPU".
NVCC       ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc) nvcc)
NVCC_FLAGS := -I. -std=c++17 -O3 -fmad=false -ftz=false -prec-div=true -prec-sqrt=true
GPU_CODES  ?= $(filter $(shell $(NVCC) --list-gpu-code),sm_80 sm_86 sm_89 sm_90 sm_100 sm_120)
CUDA_SRC   := $(wildcard ops/cuda/*.cu)
# the headers of kernels; the others in this folder belong to the code of the host
CUDA_HEADERS := $(sort $(shell sed -n 's/^\#include "\(ops\/cuda\/.*\)"$$/\1/p' $(CUDA_SRC)))
FATBIN     := $(BUILD)/ops/cuda/kernels.fatbin
$(BUILD)/ops/cuda/kernels.cu: $(CUDA_SRC) $(CUDA_HEADERS) Makefile
	@mkdir -p $(@D)
	$(Q){ printf '#include "%s"\n' $(CUDA_HEADERS); \
	    for f in $(basename $(notdir $(CUDA_SRC))); do printf 'namespace file_%s {\n#include "ops/cuda/%s.cu"\n}\n' $$f $$f; done; } >$@
$(FATBIN): $(BUILD)/ops/cuda/kernels.cu
	$(call say,NVCC $@)
	$(Q)$(NVCC) $(NVCC_FLAGS) --threads 0 -fatbin $(foreach c,$(GPU_CODES),-gencode arch=compute_$(c:sm_%=%)$(comma)code=$(c)) \
	    -gencode arch=compute_80$(comma)code=compute_80 -gencode arch=compute_75$(comma)code=compute_75 -o $@ $<
ifeq ($(CUDA),yes)
$(BUILD)/ops/cuda/image.o: $(FATBIN)
$(BUILD)/ops/cuda/image.o: private FLAGS += -DVB_CUDA_IMAGE='"$(FATBIN)"'
endif

LIB_SRC   := $(wildcard engine/*.c engine/*/*.c ops/*.c ops/*/*.c) $(SIMD)
REF_SRC   := $(wildcard reference/*.c)
TOOL_SRC  := $(filter-out tools/train/% tools/hooks/% tools/mpi/%,$(wildcard tools/*.c tools/*/*.c))
LIB_OBJ   := $(LIB_SRC:%.c=$(BUILD)/%.o)
REF_OBJ   := $(REF_SRC:%.c=$(BUILD)/%.o)
TOOL_OBJ  := $(TOOL_SRC:%.c=$(BUILD)/%.o)
VECTOR_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(filter simd/avx% simd/neon%,$(SIMD)))

.DEFAULT_GOAL := all
.PHONY: all demo train-demo serve test test-all checkasm checkasm-bench golden asan ubsan fuzz layers fmt clean help deps
all: $(BUILD)/verbatim $(BUILD)/libverbatim.a $(BUILD)/libverbatim.so.0 $(BUILD)/sleef.ok $(MPIS:%=$(BUILD)/verbatim-%)

help:
	@sed -n 's/^## //p' Makefile

## make                 build/verbatim, build/libverbatim.a and build/libverbatim.so.0; with MPI, build/verbatim-mpi and verbatim-mpich
## make deps            install the Debian packages that are missing (asks for sudo only when not root); MPI=yes: those of MPI, too
## make CUDA=yes        the same, with kernels for NVIDIA GPUs; needs nvcc
## make demo            build, then run the main job on the bundled model
## make train-demo      build, then train a model of two layers with and without MTP, and draw the curves; SHAPE=NAME: examples/train/NAME
## make serve           build, then serve the bundled model over HTTP, with a web page
## make check           before each commit: what is quick of everything, under a minute after an edit of one line; installs nothing
## make test            the tests, at most fifteen minutes on two quiet cores; warnings of the compiler are errors
## make test-all        make test, arm64, tsan, coverage, fuzz, ubsan, crossbuild and serve-all, and the full products of settings
## make serve-all       the server with the openai client and lm-evaluation-harness (installed with pip), in crowds, under sanitizers
## make checkasm        kernels: equal bits on every instruction set; checkasm-bench times them
## make asan|ubsan      the named subset of the tests under a sanitizer; make arm64: on Arm, under qemu
## make older-cpus      without AVX-512, and without FMA, under qemu: what works there does, the rest is refused
## make mistakes        named mistakes, each made in a copy of the tree: does the test that must notice it? ONLY="NAME NAME": these alone
## make gpu-check       on a machine with an NVIDIA GPU and nvcc: its kernels, whole models, and their speed
## make gpu-programs    what gpu-check needs, in build-gpu/, to be copied to a machine with a GPU where nothing can be built
## make tsan            data races: sessions, drafts and batches in many threads under ThreadSanitizer
## make coverage        the lines and branches of engine/, ops/ and simd/ that the tests reach, and a list of the lines that none does
## make crossbuild      gcc and clang, -O0 and -O3: the golden bits
## make fuzz            time-boxed fuzzing of what parses files; make fuzz-guided: guided by coverage (clang), GUIDED_SECONDS for each
## make docs            are the documents true? names, links, the commands of the tour
## make layers          who includes and calls whom, against tools/scripts/layers.table
## make fmt             format the lines changed since the last commit (needs clang-format-19)
## make golden          make the goldens again (needs Python; see golden/README.md)
## make wheel           the Python package with library and command inside, in build/wheel/, for pip
## make install         the command, libraries, header, manual; PREFIX=/usr/local, DESTDIR; make uninstall

$(BUILD)/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(call say,CC $<)
	$(Q)$(CC) $(BASE) $(CFLAGS) $(call library_flags,$<) $(FLAGS) $(call unoptimised,$<) -c -o $@ $<

# A build that need not check its vector files takes over those of another one.
ifdef VECTORS_OF
$(VECTOR_OBJ): $(BUILD)/%.o: $(VECTORS_OF)/%.o
	@mkdir -p $(@D)
	$(Q)cp $< $@
endif

# built again when the answer changes
ifneq ($(shell cat $(BUILD)/cuda.found 2>/dev/null),$(or $(CUDA),no))
$(shell mkdir -p $(BUILD) && echo $(or $(CUDA),no) >$(BUILD)/cuda.found)
endif
$(BUILD)/ops/cuda/image.o: $(BUILD)/cuda.found
ifneq ($(shell cat $(BUILD)/onednn.found 2>/dev/null),$(ONEDNN))
$(shell mkdir -p $(BUILD) && echo $(ONEDNN) >$(BUILD)/onednn.found)
endif
$(BUILD)/ops/onednn.o: $(BUILD)/onednn.found

# The library for the command and the tests, which also call functions that are not public.
$(BUILD)/internal.a: $(LIB_OBJ)
	$(call say,AR $@)
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/libreference.a: $(REF_OBJ)
	$(call say,AR $@)
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/verbatim: $(TOOL_OBJ) $(BUILD)/libreference.a $(BUILD)/internal.a
	$(call say,LD $@)
	$(Q)$(CC) $(BASE) $(CFLAGS) -o $@ $^ $(LIBS) $(EDIT) $(HTTP)

$(MPIS:%=$(BUILD)/tools/mpi/%.o): $(BUILD)/tools/mpi/%.o: tools/mpi/mpi.c tools/mpi/measure.h tools/cli/cli.h Makefile
	@mkdir -p $(@D)
	$(call say,CC $< ($*))
	$(Q)$(CC) $(BASE) $(CFLAGS) $(patsubst -I%,-isystem %,$(shell pkg-config --cflags $(PC_OF_$*))) -c -o $@ $<

$(MPIS:%=$(BUILD)/verbatim-%): $(BUILD)/verbatim-%: $(BUILD)/tools/mpi/%.o $(BUILD)/tools/mpi/measure.o $(filter-out $(BUILD)/tools/main.o,$(TOOL_OBJ)) $(BUILD)/libreference.a $(BUILD)/internal.a
	$(call say,LD $@)
	$(Q)$(CC) $(BASE) $(CFLAGS) -o $@ $^ $(LIBS) $(EDIT) $(HTTP) $(shell pkg-config --libs $(PC_OF_$*))

# Another SLEEF with other bits is refused when the program is built, in one sentence.
$(BUILD)/sleef.ok: $(BUILD)/tests/sleef_hash
	$(Q)$(RUNNER) $< && touch $@

$(BUILD)/tools/trace/html.o: $(wildcard tools/trace/*.html tools/trace/*.js)
$(BUILD)/tools/serve/page.o: tools/serve/page.html tools/serve/page.js tools/serve/page_request.js tools/serve/page_tokens.js

include tests/tests.mk
include tools/install.mk

-include $(LIB_OBJ:.o=.d) $(REF_OBJ:.o=.d) $(TOOL_OBJ:.o=.d) $(wildcard $(BUILD)/tests/*.d $(BUILD)/tests/*/*.d)

deps:
	tools/scripts/install-deps.sh $(if $(filter yes,$(MPI)),mpi)

demo: deps
	$(MAKE) all
	tools/scripts/demo.sh

train-demo: deps
	$(MAKE) all
	tools/scripts/train-demo.sh

serve: deps
	$(MAKE) $(BUILD)/verbatim
	$(BUILD)/verbatim serve golden/tale --draft mtp-eagle --draft-tokens 1

golden:
	golden/scripts/make-all.sh

# FMT_SINCE=main: what a branch changed
FMT_SINCE ?= HEAD
fmt:
	@command -v git-clang-format-19 >/dev/null || { echo "make fmt needs clang-format-19 (apt-get install clang-format-19)" >&2; exit 1; }
	git clang-format-19 --force --binary clang-format-19 --style file $(FMT_SINCE) || [ $$? -eq 1 ] # 1: it changed lines

clean:
	rm -rf $(BUILD) build-*
