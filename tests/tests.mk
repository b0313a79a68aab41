# tests/tests.mk -- what is built from tests/, and what `make test` runs. Included by the Makefile.

# A program is built from one source file, in whatever folder, and is build/tests/NAME.
TEST_SRC := $(wildcard tests/*.c tests/*/*.c)
named     = $(foreach s,$(TEST_SRC),$(if $(filter $(1),$(notdir $(s))),$(s)))
programs  = $(addprefix $(BUILD)/tests/,$(basename $(notdir $(1))))
object    = $(patsubst %.c,$(BUILD)/%.o,$(call named,$(1).c))
TESTS    := $(call programs,$(call named,checkops_%.c checkcuda_%.c test_%.c))
FUZZERS  := $(call programs,$(filter-out %/fuzz_main.c,$(call named,fuzz_%.c)))
CHECKASM := $(call object,checkasm%)
# Code that tests share, in an archive, so that a program links only what it calls. Nothing calls one_test.c: its object is linked
# to every test. fail_*.c are preloaded.
SUPPORT  := $(BUILD)/tests/support.a
LIBRARIES := $(BUILD)/libreference.a $(BUILD)/internal.a

link = $(Q)echo '  LD $@'; $(CC) $(BASE) $(CFLAGS) $(WRAP) -o $@ $(filter %.o,$^) $(filter %.a,$^)

# The kernels of GPUs, compiled for the CPU, and a device that runs them (tests/cuda/emulator.h).
EMULATOR := $(BUILD)/tests/cuda.a
CXX      ?= g++
CXX_BASE  = -std=c++17 -D_GNU_SOURCE -fPIC -fvisibility=hidden -fno-exceptions -fno-rtti $(OPT) -ffp-contract=off -fno-strict-aliasing -Wall -Wextra -Wshadow $(if $(WERROR),-Werror) -iquote . -MMD -MP
# Tests of single kernels watch what the kernels read and write (tests/cuda/watch.h). Whole models would take too long.
WATCHED  := $(BUILD)/tests/cuda-watched.a
cxx       = $(Q)$(CXX) $(CXX_BASE) $(CFLAGS) -c -o $@ $1 $<
kernel    = $(call cxx,$(if $(filter x86_64,$(ARCH)),-mfma) -fsanitize=alignment -fsanitize-undefined-trap-on-error $1 -include tests/cuda/lanes.h -x c++)
$(BUILD)/ops/cuda/%.cu.o: ops/cuda/%.cu Makefile
	@mkdir -p $(@D)
	$(call say,CXX $<)
	$(call kernel)
$(BUILD)/ops/cuda/%.cu.watched.o: ops/cuda/%.cu Makefile
	@mkdir -p $(@D)
	$(call say,CXX $<$(comma) watched)
	$(call kernel,-fsanitize=thread)
$(BUILD)/tests/cuda/%.o: tests/cuda/%.cc Makefile
	@mkdir -p $(@D)
	$(call say,CXX $<)
	$(call cxx)
$(EMULATOR): $(CUDA_SRC:%=$(BUILD)/%.o) $(BUILD)/tests/cuda/emulator.o
$(WATCHED): $(CUDA_SRC:%=$(BUILD)/%.watched.o) $(BUILD)/tests/cuda/emulator.o $(BUILD)/tests/cuda/watch.o
$(EMULATOR) $(WATCHED):
	$(call say,AR $@)
	$(Q)rm -f $@ && $(AR) rcs $@ $^
# The emulator's threads change stacks in a way that sanitizers do not know: these programs are built without them.
CHECKCUDA := $(call programs,$(call named,checkcuda_%.c))
$(filter %_engine %_cublas,$(CHECKCUDA)): $(EMULATOR)
$(filter-out %_engine %_cublas,$(CHECKCUDA)): $(WATCHED)
-include $(wildcard $(BUILD)/ops/cuda/*.d)
# A driver of GPUs that is none, its library of matrix products, and the command with kernels that only this driver accepts.
FAKE_GPU := $(BUILD)/tests/cuda/libcuda.so.1 $(BUILD)/tests/cuda/libcublas.so.13 $(BUILD)/tests/cuda/verbatim
$(BUILD)/tests/cuda/libcublas.so.13: $(BUILD)/tests/cuda/fake_cublas.o $(BUILD)/tests/cuda/libcuda.so.1
	$(Q)echo '  LD $@'; $(CC) $(BASE) $(CFLAGS) -shared -Wl,-soname,libcublas.so.13 -o $@ $^
# This test opens GPU cuda: the driver that is none, unless LD_LIBRARY_PATH has another one.
ifneq ($(CUDA),yes)
$(BUILD)/tests/checkcuda_cublas: $(BUILD)/tests/cuda/fake_image.o $(FAKE_GPU)
$(BUILD)/tests/checkcuda_cublas: WRAP := -Wl,-rpath,'$$ORIGIN/cuda'
endif
$(BUILD)/tests/cuda/libcuda.so.1: $(BUILD)/tests/cuda/fake_driver.o $(EMULATOR) $(BUILD)/internal.a
	$(Q)echo '  LD $@'; $(CC) $(BASE) $(CFLAGS) -shared -Wl,-soname,libcuda.so.1 -o $@ $^ -lm -lpthread
$(BUILD)/tests/cuda/verbatim: $(BUILD)/tests/cuda/fake_image.o $(TOOL_OBJ) $(BUILD)/libreference.a $(BUILD)/internal.a
	$(Q)echo '  LD $@'; $(CC) $(BASE) $(CFLAGS) -o $@ $^ $(LIBS) $(EDIT) $(HTTP)

# On a machine with a GPU and nvcc: the tests of kernels on it, whole models, and their speed. If nothing can be built there, gpu-programs makes a folder
# with all programs and their libraries; copy build-gpu and this tree to the machine with the GPU, and run `tests/cuda/gpu-check.sh build-gpu` there.
gpu-check: gpu-programs
	tests/cuda/gpu-check.sh build-gpu
gpu-programs:
	+$(MAKE) CUDA=yes HAVE_LIBEDIT=no HAVE_MICROHTTPD=no BUILD=build-cuda build-cuda/verbatim $(patsubst $(BUILD)/%,build-cuda/%,$(CHECKCUDA))
	tests/cuda/gpu-programs.sh build-cuda build-gpu

# This one chooses the random numbers itself.
$(BUILD)/tests/test_rejection: WRAP := -Wl,--wrap=random_at

# This one invents the times that passes and drafts take.
$(BUILD)/tests/test_draft_length: WRAP := -Wl,--wrap=monotonic_seconds

# This one takes kinds of rename away from the file system.
$(BUILD)/tests/test_new_file: WRAP := -Wl,--wrap=renameat2,--wrap=link

# This one compares the program with its table of options, and runs it inside.
$(BUILD)/tests/test_help: $(filter-out %/tools/main.o,$(TOOL_OBJ))
$(BUILD)/tests/test_help: LIBS += $(EDIT) $(HTTP)

# These test parts of the server, and let its allocations fail.
SCHEMA := $(patsubst %,$(BUILD)/tools/serve/%.o,schema schema_read schema_build schema_step schema_string schema_state allowed vocabulary thinking meaning_json)
$(BUILD)/tests/test_schema $(BUILD)/tests/test_schema_hostile: $(SCHEMA)
$(BUILD)/tests/test_schema_hostile $(BUILD)/tests/test_allowed: WRAP := -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc
MEANING := $(patsubst %,$(BUILD)/tools/serve/%.o,meaning meaning_call meaning_format meaning_json writer)
$(BUILD)/tests/test_meaning $(BUILD)/tests/fuzz_meaning: $(MEANING)
$(BUILD)/tests/test_schema_calls $(BUILD)/tests/test_allowed $(BUILD)/tests/fuzz_schema: $(sort $(SCHEMA) $(MEANING)) $(patsubst %,$(BUILD)/tools/serve/%.o,schema_calls schema_pairs)
$(BUILD)/tests/test_meaning $(BUILD)/tests/test_schema_calls: WRAP := -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc

$(SUPPORT): $(call object,checkops) $(patsubst %.c,$(BUILD)/%.o,$(filter-out %/one_test.c %/fail_io.c %/fail_memory.c,$(wildcard tests/support/*.c)))
	$(call say,AR $@)
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(foreach t,$(TESTS) $(FUZZERS),$(eval $(t): $(call object,$(notdir $(t)))))
$(TESTS): $(call object,one_test) $(SUPPORT) $(LIBRARIES)
	$(link) -lcmocka $(LIBS)
# What the command reads itself is fuzzed with the command's own files. GUIDED: libFuzzer takes the place of our driver.
$(call programs,fuzz_prompts fuzz_messages fuzz_manifest fuzz_scores): $(filter-out %/tools/main.o,$(TOOL_OBJ))
$(FUZZERS): $(if $(GUIDED),,$(call object,fuzz_main)) $(SUPPORT) $(LIBRARIES)
	$(link) $(if $(GUIDED),-fsanitize=fuzzer) $(LIBS) $(EDIT) $(HTTP)
$(BUILD)/tests/checkasm: $(CHECKASM) $(SUPPORT) $(LIBRARIES)
	$(link) $(LIBS)
$(BUILD)/tests/sleef_hash: $(call object,sleef_hash) $(BUILD)/internal.a
	$(link) $(LIBS)

# Preloaded into the command by test_io_faults and test_serve_memory.py: calls that fail.
$(BUILD)/tests/fail_%.so: tests/support/fail_%.c
	@mkdir -p $(@D)
	$(Q)echo '  CC $@'; $(CC) -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Werror -g -O1 -fPIC -shared -o $@ $< -ldl
$(BUILD)/tests/test_io_faults $(BUILD)/tests/test_training: | $(BUILD)/tests/fail_io.so

# This one tests the order of sequences alone, too.
$(BUILD)/tests/test_training_texts: $(BUILD)/tools/training/order.o

# ops/crew.c under ThreadSanitizer, without libgomp.
TSAN_CREW := $(BUILD)/tests/tsan_crew
$(TSAN_CREW): tests/ops/checkops_crew.c ops/crew.c ops/placement.c ops/crew.h ops/placement.h simd/fpenv.h
	@mkdir -p $(@D)
	$(Q)echo '  CC $@'; $(CC) -std=gnu11 -D_GNU_SOURCE -g -O1 -fsanitize=thread -iquote . -DCREW_ALONE -o $@ $(filter %.c,$^) -lcmocka -lpthread

.SECONDARY:

# Time-boxed: so many mutations of the seeds, the same every time. `make fuzz` is longer.
FUZZ_RUNS ?= 3000
SEEDS_OF_fuzz_safetensors := $(wildcard golden/tiny/v3-mtp3/*.safetensors)
SEEDS_OF_fuzz_config      := $(wildcard golden/tiny/*/config.json)
SEEDS_OF_fuzz_tokenizer   := golden/tokenizer/tokenizer.json
SEEDS_OF_fuzz_gguf        := golden/gguf/tiny.gguf golden/gguf/tiny-quantized.gguf golden/gguf/tiny-indexer.gguf
SEEDS_OF_fuzz_tiktoken    := golden/tiktoken/fuzz.seed golden/tekken/fuzz.seed
SEEDS_OF_fuzz_session     := golden/session/tiny.session
SEEDS_OF_fuzz_template    := $(wildcard golden/chat/*.jinja)
SEEDS_OF_fuzz_prompts     := golden/tale/prompts.jsonl
SEEDS_OF_fuzz_head        := $(wildcard golden/eagle/*/config.json golden/heads/*/config.json)
# What guided fuzzing found worth keeping; a target may have nothing else.
corpus_of = $(wildcard tests/fuzz/corpus/$(1)/*)
seeds_of  = $(SEEDS_OF_$(1)) $(call corpus_of,$(1))
fuzz_smoke = $(foreach f,$(FUZZERS),"$(1)$(notdir $(f)):$(f) -random $(FUZZ_RUNS) 1 $(call seeds_of,$(notdir $(f)))")

space := $(empty) $(empty)
# The named subset, for sanitizers: what handles files and memory, and the golden runs of every tiny checkpoint.
SUBSET := test_config test_json test_checkpoint test_gguf test_gguf_errors test_quantized_errors test_quantize test_quantize_tokenizer test_model test_tokenizer \
          test_tokenizer_errors test_tiktoken test_template test_session test_session_file test_sampler test_stop test_schema test_schema_hostile test_allowed test_meaning \
          test_schema_calls
SUBSET_PROGRAMS = $(filter $(SUBSET:%=$(BUILD)/tests/%),$(TESTS))
subset-programs: $(SUBSET_PROGRAMS) $(BUILD)/tests/test_bits $(FUZZERS) $(BUILD)/verbatim
# Of places where a text is cut, a share: sanitizers look at the code, and without them the same programs try every place.
ARGUMENTS_OF_test_meaning := 5
ARGUMENTS_OF_test_stop    := 3
run_subset = $(foreach t,$(filter-out $(2),$(SUBSET)),$(if $(call named,$(t).c),"$(1)/$(t):build-$(1)/tests/$(t) $(ARGUMENTS_OF_$(t))")) \
             "$(1)/test_bits:build-$(1)/tests/test_bits 3" \
             $(foreach f,$(notdir $(FUZZERS)),"$(1)/$(f):build-$(1)/tests/$(f) -random 300 1 $(call seeds_of,$(f))")
# Clang knows more of what is undefined, and conversions that lose something. Unsigned numbers may wrap around: hashes do.
CLANG_CHECKS := float-cast-overflow,implicit-conversion
sanitize  = $(if $(has_clang),CC=clang) SANITIZE="-fsanitize=$(1)$(if $(has_clang),$(comma)$(CLANG_CHECKS)) -fno-sanitize-recover=all"
sanitized = +$(MAKE) BUILD=build-$(1) OPT=-O1 $(call sanitize,$(2)) subset-programs
# Clang 14's LeakSanitizer, at the end of a program, sometimes mistakes which thread-local memory exists, and crashes.
with_tls = env ASAN_OPTIONS=intercept_tls_get_addr=0
# For `make test` and the server's tests, one build with both. In the vector files, which are unrolled intrinsics, checks of each pointer
# take clang four times as long as everything else; AddressSanitizer looks at the same accesses, and `make ubsan` checks all.
# AddressSanitizer's checks there are calls, which compile in a quarter of the time of the same code in place. Of the tools, only the
# server's code takes time in tests.
asan_calls = $(if $(has_clang),-mllvm -asan-instrumentation-with-call-threshold=0,--param asan-instrumentation-with-call-threshold=0)
both_sanitizers = BUILD=build-sanitized OPT=-O1 CFLAGS=-g1 UNOPTIMISED="$(filter-out tools/serve/%,$(TOOL_SRC))" $(call sanitize,address$(comma)undefined) \
                  UNCHECKED_VECTORS="-fno-sanitize=null,alignment,object-size,pointer-overflow $(asan_calls)"
no_clang  = $(if $(has_clang),,"$(1)/clang:echo skipped: clang with libomp is not installed; not looked for: conversions that lose something")
sanitized-programs:
	+$(MAKE) $(both_sanitizers) subset-programs
asan-programs:
	$(call sanitized,address,address)
ubsan-programs:
	$(call sanitized,undefined,undefined)
asan: asan-programs
	@tests/run.sh -l build-address/logs $(call run_subset,address)
ubsan: ubsan-programs
	@tests/run.sh -l build-undefined/logs $(call run_subset,undefined) $(call no_clang,undefined)

# Data races. gcc's ThreadSanitizer does not know OpenMP, whose threads only tests and the opening of models still use; sessions compute
# with ops/crew.c. `make test` runs the first of these programs, with scalar kernels: the vector files of its build are not compiled again.
TSAN := test_threads test_session test_forced test_rounds test_batch
TSAN_RANKS := test_ranks test_ranks_bytes # each opens models in several threads; OpenMP then has one thread for each of them
threads-program: $(VECTOR_OBJ)
	+$(MAKE) BUILD=build-thread-scalar OPT=-O1 CFLAGS=-g1 VECTORS_OF=$(BUILD) SANITIZE=-fsanitize=thread build-thread-scalar/tests/test_threads
tsan-programs:
	+$(MAKE) BUILD=build-thread OPT=-O1 SANITIZE=-fsanitize=thread $(addprefix build-thread/tests/,$(TSAN) $(TSAN_RANKS))
tsan: tsan-programs $(TSAN_CREW)
	@tests/run.sh -l build-thread/logs $(TSAN:%=build-thread/tests/%) $(foreach t,$(TSAN_RANKS),"$t:env OMP_THREAD_LIMIT=1 build-thread/tests/$t") "crew:$(TSAN_CREW)"

# Which lines and branches of the library do the tests reach? Tests that limit the size of files fail in this build, because gcov's
# own counts cannot be written then and its runtime says so on stderr; what the program had counted before is in the figures.
COVERED = engine ops simd
coverage-programs:
	+$(MAKE) BUILD=build-coverage OPT=-O1 SANITIZE="--coverage -fprofile-update=atomic" all test-programs
coverage: coverage-programs
	@find build-coverage -name '*.gcda' -delete
	@tests/run.sh -l build-coverage/logs $(subst $(BUILD)/,build-coverage/,$(LONG) "checkasm:$(BUILD)/tests/checkasm --quick" \
	    $(filter-out $(LONG),$(TESTS)) $(call fuzz_smoke)) || echo "coverage: the figures below are those of a run with failures"
	@tests/coverage.py build-coverage $(COVERED)

# Do the tests notice? Mistakes are made in two copies of the tree, which start with the objects of this one.
# make mistakes ONLY="NAME NAME": these alone
MISTAKES = tests/mistakes/mistakes.py --build $(BUILD)
mistakes: $(addprefix $(BUILD)/,$(shell tests/mistakes/mistakes.py --programs))
	@$(MISTAKES) $(ONLY)

# Another processor: cross-compiled, run under an emulator. The golden bits must be the same there. The emulated CPU has dotprod and
# i8mm, and checkasm tests the kernels for CPUs without them too. tools/ has no code of an architecture: `make test` does not compile the command.
SYSROOT := build-arm64/sysroot
ARM64_LINES ?= 3
ARM64_GOALS  = arm64-subset
arm64-programs:
	tools/scripts/arm64-sysroot.sh $(SYSROOT)
	+$(MAKE) BUILD=build-arm64 CC=aarch64-linux-gnu-gcc UNOPTIMISED=tools/% RUNNER="qemu-aarch64 -L $(SYSROOT)" \
	    CFLAGS="-isystem $(SYSROOT)/usr/include -L$(SYSROOT)/usr/lib/aarch64-linux-gnu -Wl,-rpath-link,$(SYSROOT)/usr/lib/aarch64-linux-gnu" \
	    $(ARM64_GOALS)
arm64-subset: $(BUILD)/sleef.ok $(BUILD)/tests/checkasm $(BUILD)/tests/test_bits $(BUILD)/tests/test_ranks_replay
run_arm64 = "arm64/checkasm:qemu-aarch64 -L $(SYSROOT) build-arm64/tests/checkasm --quick" \
            "arm64/test_bits:qemu-aarch64 -L $(SYSROOT) build-arm64/tests/test_bits $(ARM64_LINES)" \
            "arm64/ranks:tests/ranks_replay.sh $(BUILD) qemu-aarch64 -L $(SYSROOT) build-arm64" \
            "arm64/stack_access:tests/kernels/stack_access.py $(patsubst %,build-arm64/simd/neon_%.o,tiles quantized dotprod i8mm)"
arm64: ARM64_GOALS = all arm64-subset
arm64: arm64-programs $(BUILD)/tests/test_ranks_replay
	@tests/run.sh -l build-arm64/logs $(run_arm64)

# Older CPUs than this one, emulated. Under the emulator oneDNN's 512 rows take minutes: test_bench runs without it, with oneDNN
# told to use nothing newer than AVX2.
HASWELL_LINES ?= 2
on_haswell = tests/older-cpus.sh Haswell $(BUILD)
run_older  = "haswell/test_bits:$(on_haswell)/tests/test_bits $(HASWELL_LINES)" "haswell/checkasm:$(on_haswell)/tests/checkasm --quick" \
             "haswell/bench:$(on_haswell)/verbatim bench golden/tiny/v3-mtp3 --rounds 1 --threads 1 --only prefill" \
             "haswell/demo:$(on_haswell)/verbatim demo golden/tale --tokens 5,6 -n 4 --rounds 1" "haswell/checkops_onednn:$(on_haswell)/tests/checkops_onednn --quick" "haswell/test_prefill:$(on_haswell)/tests/test_prefill --quick" \
             "avx2/test_bench:env ONEDNN_MAX_CPU_ISA=AVX2 VERBATIM_TEST=*onednn* $(BUILD)/tests/test_bench" "nehalem/verbatim:tests/older-cpus.sh no-fma $(BUILD)/verbatim"
older-cpus: all $(addprefix $(BUILD)/tests/,test_bits checkasm checkops_onednn test_prefill test_bench)
	@tests/run.sh -l $(BUILD)/logs $(run_older)

# Other compilers and levels of optimisation: the golden bits once more. Clang needs libomp; without them it is skipped. Of gcc -O0 (INLINED: in
# part -O1) and clang -O3, `make test` builds the one that has its turn; it also has gcc -O2, and clang -O1 with sanitizers. Without -g: it takes a
# fifth of the time.
CROSS = $(if $(has_clang),$(word $(shell echo $$(($(TURN) % 2 + 1))),gcc-O0 clang-O3),gcc-O0)
crossbuild: CROSS = gcc-O0 gcc-O3 clang-O0 clang-O3
CROSS_LINES ?= 3
has_clang    = $(shell echo 'int main(void) { return 0; }' | clang -fopenmp -x c -o /dev/null - 2>/dev/null && echo yes)
cross_here   = $(if $(has_clang),$(CROSS),$(filter-out clang%,$(CROSS)))
crossbuild-programs:
	+for c in $(cross_here); do $(MAKE) BUILD=build-$$c CC=$${c%-*} OPT=-$${c#*-} CFLAGS= build-$$c/tests/test_bits || exit 1; done
run_cross    = $(foreach c,$(cross_here),"cross/$(c):build-$(c)/tests/test_bits $(CROSS_LINES)") \
               $(if $(has_clang),,"cross/clang:echo skipped: clang with libomp is not installed")
crossbuild: crossbuild-programs
	@tests/run.sh -l build/logs $(run_cross)

# Where the compilers that optimise keep the sums of the AVX2 tiles. A build with sanitizers or -O0 may keep them on the stack.
run_stack    = $(if $(filter avx2,$(SETS_OF_$(ARCH))),"stack_access:tests/kernels/stack_access.py $(patsubst %,%/simd/avx2_tiles.o,$(BUILD) $(addprefix build-,$(filter %-O3,$(cross_here))))")

test-deps:
	tools/scripts/install-deps.sh test
test-programs: $(TESTS) $(FAKE_GPU) $(FUZZERS) $(BUILD)/tests/checkasm $(BUILD)/tests/fail_memory.so $(TSAN_CREW)

# Before each commit: of everything what is quick, under a minute after an edit of one line. Installs nothing.
QUICK := test_truth test_session test_forced test_sampler test_template test_tokenizer test_config test_model test_checkpoint test_gguf \
         checkops_linear checkops_router test_cli test_cli_errors test_cli_text
check: all $(addprefix $(BUILD)/tests/,$(QUICK) test_bits checkasm)
	@tests/run.sh -l $(BUILD)/logs/check $(QUICK:%=$(BUILD)/tests/%) "test_bits:$(BUILD)/tests/test_bits 6" "checkasm:$(BUILD)/tests/checkasm --quick" \
	    "layers:tools/scripts/layers $(BUILD)" "docs:tests/docs.py $(BUILD)" "mistakes:tests/mistakes/mistakes.py --check" "man:tools/scripts/man.sh 1 $(BUILD)/verbatim $(VERSION)"

# Of long sweeps `make test` tries a share, and each commit has another one's turn (tests/support/turn.h). `make test-all` tries all.
TURN   = $(shell printf '%d' 0x$$(git rev-parse --short=7 HEAD 2>/dev/null || echo 0))
SWEEPS = $(call programs,$(notdir $(shell grep -lw has_turn tests/*/test_*.c tests/*/checkops_*.c tests/cuda/checkcuda_*.c)))

# The longest first, so that no core waits for one of them at the end.
LONG := $(patsubst %,$(BUILD)/tests/%,test_properties test_bits test_quantized test_prefill test_rejection test_truth test_diff test_precision test_forced \
          checkops_attention)
run_native = "layers:tools/scripts/layers $(BUILD)" "tests/layers:tests/layers.sh $(BUILD)" "docs:tests/docs.py $(BUILD)" "grids:tests/grids.py" "train-demo:tests/cli/train-demo.sh $(BUILD)" $(filter $(LONG),$(TESTS)) $(BUILD)/tests/checkasm tests/install.sh tests/python.sh \
             "layouts:tests/cli/test_layouts.py $(BUILD)/verbatim" "layouts/int8:tests/cli/test_layouts_int8.py $(BUILD)/verbatim" "layouts/mistral:tests/cli/test_layouts_mistral.py $(BUILD)/verbatim" "plan:tests/cli/test_plan.py $(BUILD)/verbatim" "cuda/ptx:tests/cuda/ptx.py" "cuda/device:tests/cuda/test_device.py $(BUILD)/tests/cuda/verbatim" "cuda/cublas:tests/cuda/test_cublas.py $(BUILD)/tests/cuda/verbatim" "cuda/tensor:tests/cuda/test_tensor.py $(BUILD)/tests/cuda/verbatim" "mpi:tests/cli/test_mpi.py $(BUILD)/verbatim" "mpi/memory:tests/cli/test_mpi_memory.py $(BUILD)/verbatim" "serve/load:tests/cli/test_serve_load.py $(BUILD)/verbatim" "serve/page:tests/cli/test_serve_page.py $(BUILD)/verbatim" "serve/meaning:tests/cli/test_serve_meaning.py $(BUILD)/verbatim" \
             "tsan/crew:$(TSAN_CREW)" "tsan/test_threads:build-thread-scalar/tests/test_threads scalar" "browser:tests/browser.sh $(BUILD)/verbatim" "serve:tests/cli/test_serve.py $(BUILD)/verbatim" "serve/clients:tests/cli/test_serve_clients.py $(BUILD)/verbatim" "serve/memory:tests/cli/test_serve_memory.py $(BUILD)/verbatim" \
             "serve/random:tests/cli/test_serve_random.py $(BUILD)/verbatim" "serve/openai:tests/cli/test_serve_openai.py $(BUILD)/verbatim" $(filter-out $(LONG),$(TESTS)) $(call fuzz_smoke)

# One make builds all of it, so that no core waits for the slowest file of one build. Both sanitizers share a build; test_session and
# test_session_file take minutes there and are left to `make asan` and `make ubsan`.
test: test-deps
	+$(MAKE) -j2 WERROR=1 all test-programs arm64-programs sanitized-programs crossbuild-programs threads-program
	@VERBATIM_TURN=$(TURN) tests/run.sh -l $(BUILD)/logs $(run_arm64) $(run_native) $(run_older) $(run_cross) $(run_stack) "mistakes:$(MISTAKES) --jobs 1 --share 8 --tests-pass" "mistakes/planted:tests/mistakes/planted.sh $(BUILD)" "foreign:tests/foreign/run.sh score.py --sample --only f32,bf16 --goals f32:right=100,bf16:right=100,clean=0 $(BUILD)/verbatim" $(call run_subset,sanitized,test_session test_session_file) $(call no_clang,sanitized) \
	    "sanitized/serve/clients:$(with_tls) SERVE_FUZZ=400 tests/cli/test_serve_clients.py build-sanitized/verbatim malformed_requests_do_no_harm"

# The server with clients of others, crowds of connections, and more of what `make test` samples. serve_*.sh install their clients with pip.
# libmicrohttpd is not built with ThreadSanitizer; its locks are pthread's, which are, and nothing has to be suppressed. Of libgomp it sees
# no barrier: where models are quantized or copied, they are so in one thread.
serve-programs:
	+$(MAKE) $(BUILD)/verbatim $(BUILD)/tests/fail_memory.so
	+$(MAKE) BUILD=build-thread OPT=-O1 SANITIZE=-fsanitize=thread build-thread/verbatim
	+$(MAKE) BUILD=build-leaks OPT=-O1 SANITIZE="-fsanitize=address -fno-sanitize-recover=all" build-leaks/verbatim build-leaks/tests/fail_memory.so
	+$(MAKE) $(both_sanitizers) build-sanitized/verbatim
run_serve = "serve/crowd:tests/cli/test_serve_crowd.py $(BUILD)/verbatim" "thread/serve:env OMP_THREAD_LIMIT=1 tests/cli/test_serve.py build-thread/verbatim" \
            "thread/serve/clients:env SERVE_FUZZ=100 tests/cli/test_serve_clients.py build-thread/verbatim" \
            "thread/serve/random:env SERVE_RANDOM=300 tests/cli/test_serve_random.py build-thread/verbatim" \
            "leaks/serve/memory:env ASAN_OPTIONS=verify_asan_link_order=0 tests/cli/test_serve_memory.py --all build-leaks/verbatim" \
            "serve/memory-all:tests/cli/test_serve_memory.py --all $(BUILD)/verbatim" "serve/random-all:env SERVE_RANDOM=20000 tests/cli/test_serve_random.py $(BUILD)/verbatim" \
            "sanitized/serve:$(with_tls) tests/cli/test_serve.py build-sanitized/verbatim" "sanitized/serve/random:$(with_tls) SERVE_RANDOM=2000 tests/cli/test_serve_random.py build-sanitized/verbatim" \
            "sanitized/serve/clients:$(with_tls) SERVE_FUZZ=10000 tests/cli/test_serve_clients.py build-sanitized/verbatim" \
            "serve/openai-client:tests/cli/serve_openai.sh $(BUILD)/verbatim" "serve/lm-eval:tests/cli/serve_lm_eval.sh $(BUILD)/verbatim"
serve-all: serve-programs
	@tests/run.sh -l $(BUILD)/logs/serve $(run_serve)

test-all: test arm64 tsan coverage fuzz ubsan crossbuild serve-all
	@tests/run.sh -l $(BUILD)/logs "abi:tests/api/abi.sh $(BUILD)" "test_properties_all:$(BUILD)/tests/test_properties --all" "test_bits_all:$(BUILD)/tests/test_bits --all" "checkcuda_exp_all:$(BUILD)/tests/checkcuda_exp --all" $(foreach t,weights sessions taps faults,"test_ranks_$(t)_all:$(BUILD)/tests/test_ranks_$(t) --all") \
	    $(foreach t,$(SWEEPS),"all/$(notdir $t):$t") "mistakes/all:$(MISTAKES) --jobs 1" \
	    "foreign/all:tests/foreign/run.sh score.py -v --goals f32:right=100,bf16:right=97,f16:right=98,tf32:right=98,fp8:right=95,clean=0 $(BUILD)/verbatim" \
	    "foreign/hooks:tests/foreign/run.sh score.py -v --hooks --ranks 1 --only bf16 --goals bf16:right=96,clean=0 $(BUILD)/verbatim" \
	    "foreign/conventions:tests/foreign/run.sh score_conventions.py -v --goals f32=10,bf16=10 $(BUILD)/verbatim" \
	    "avx2/test_prefill:env ONEDNN_MAX_CPU_ISA=AVX2 $(BUILD)/tests/test_prefill" "mpi/all:tests/cli/test_mpi.py $(BUILD)/verbatim --all"

fuzz: $(FUZZERS)
	@tests/run.sh -l $(BUILD)/logs $(subst -random $(FUZZ_RUNS),-random 300000,$(call fuzz_smoke))

# Guided by coverage, with libFuzzer and clang's sanitizers: each target for so many seconds, one after the other. New inputs are
# kept in build-guided/corpus; `make fuzz-corpus` puts the few that add coverage into tests/fuzz/corpus. What is found lies in build-guided.
GUIDED_SECONDS ?= 60
GUIDED_CC ?= clang
GUIDED_SANITIZE := -fsanitize=address,undefined,$(CLANG_CHECKS),fuzzer-no-link -fno-sanitize-recover=all
GUIDED_TARGETS ?= $(notdir $(FUZZERS))
fuzz-guided-programs:
	+$(MAKE) BUILD=build-guided CC="$(GUIDED_CC)" OPT=-O1 GUIDED=1 SANITIZE="$(GUIDED_SANITIZE)" $(GUIDED_TARGETS:%=build-guided/tests/%)
fuzz-guided:
	+$(if $(has_clang),$(MAKE) fuzz-guided-programs && tests/fuzz/guided.sh build-guided $(GUIDED_SECONDS) \
	    $(foreach t,$(GUIDED_TARGETS),$(subst $(space),:,$(strip $(t) $(SEEDS_OF_$(t))))),\
	    @echo "skipped: clang with libomp is not installed; not tried: fuzzing guided by coverage")
# For tests/fuzz/oss-fuzz/build.sh.
print-seeds:
	@echo $(call seeds_of,$(TARGET))
print-tools:
	@echo $(filter-out %/tools/main.o,$(TOOL_OBJ))
print-libs:
	@echo $(LIBS) $(EDIT) $(HTTP)
fuzz-corpus:
	tests/fuzz/guided.sh --keep build-guided $(GUIDED_TARGETS)

checkasm: $(BUILD)/tests/checkasm
	$<
checkasm-bench: $(BUILD)/tests/checkasm
	$< --bench

docs: all
	tests/docs.py $(BUILD)

layers: $(LIB_OBJ) $(REF_OBJ) $(TOOL_OBJ)
	tools/scripts/layers $(BUILD)

.PHONY: check gpu-check gpu-programs docs tsan tsan-programs threads-program sanitized-programs coverage coverage-programs test-deps test-programs subset-programs asan-programs ubsan-programs arm64 \
        arm64-programs arm64-subset mistakes serve-all serve-programs crossbuild crossbuild-programs older-cpus fuzz-guided fuzz-guided-programs fuzz-corpus print-seeds print-tools print-libs
