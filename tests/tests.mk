# tests/tests.mk -- what is built from tests/, and what `make test` runs. Included by the Makefile.

# A program is built from one source file, in whatever folder, and is build/tests/NAME.
TEST_SRC := $(wildcard tests/*.c tests/*/*.c)
named     = $(foreach s,$(TEST_SRC),$(if $(filter $(1),$(notdir $(s))),$(s)))
programs  = $(addprefix $(BUILD)/tests/,$(basename $(notdir $(1))))
object    = $(patsubst %.c,$(BUILD)/%.o,$(call named,$(1).c))
TESTS    := $(call programs,$(call named,checkops_%.c test_%.c))
FUZZERS  := $(call programs,$(filter-out %/fuzz_main.c,$(call named,fuzz_%.c)))
CHECKASM := $(call object,checkasm%)
LIBRARIES := $(BUILD)/libreference.a $(BUILD)/libverbatim.a

link = $(Q)echo '  LD $@'; $(CC) $(BASE) $(CFLAGS) $(WRAP) -o $@ $(filter %.o,$^) $(filter %.a,$^)

# This one chooses the random numbers itself.
$(BUILD)/tests/test_rejection: WRAP := -Wl,--wrap=random_at

# In the mistakes build (ops/mistake.h) every test program can be told to make one.
MISTAKE :=
ifeq ($(BUILD),build-mistakes)
BASE    += -DVB_MISTAKES
MISTAKE := $(call object,mistakes)
endif

$(foreach t,$(TESTS) $(FUZZERS),$(eval $(t): $(call object,$(notdir $(t)))))
$(TESTS): $(MISTAKE) $(LIBRARIES)
	$(link) -lcmocka $(LIBS)
$(FUZZERS): $(call object,fuzz_main) $(LIBRARIES)
	$(link) $(LIBS)
$(BUILD)/tests/checkasm: $(CHECKASM) $(LIBRARIES)
	$(link) $(LIBS)
$(BUILD)/tests/sleef_hash: $(call object,sleef_hash) $(BUILD)/libverbatim.a
	$(link) $(LIBS)

# Preloaded into the command by test_io_faults: calls that fail.
$(BUILD)/tests/fail_io.so: tests/support/fail_io.c
	@mkdir -p $(@D)
	$(Q)echo '  CC $@'; $(CC) -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Werror -g -O1 -fPIC -shared -o $@ $< -ldl
$(BUILD)/tests/test_io_faults: | $(BUILD)/tests/fail_io.so

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
SEEDS_OF_fuzz_gguf        := golden/gguf/tiny.gguf golden/gguf/tiny-quantised.gguf
SEEDS_OF_fuzz_tiktoken    := golden/tiktoken/fuzz.seed
SEEDS_OF_fuzz_session     := golden/session/tiny.session
SEEDS_OF_fuzz_template    := $(wildcard golden/chat/*.jinja)
fuzz_smoke = $(foreach f,$(FUZZERS),"$(1)$(notdir $(f)):$(f) -random $(FUZZ_RUNS) 1 $(SEEDS_OF_$(notdir $(f)))")

# The named subset, for sanitizers: what handles files and memory, and the golden runs of every tiny checkpoint.
SUBSET := test_config test_json test_checkpoint test_gguf test_gguf_errors test_quantised_errors test_quantize test_quantize_tokenizer test_model test_tokenizer \
          test_tokenizer_errors test_tiktoken test_template test_session test_session_file test_sampler test_stop
SUBSET_PROGRAMS = $(filter $(SUBSET:%=$(BUILD)/tests/%),$(TESTS))
subset-programs: $(SUBSET_PROGRAMS) $(BUILD)/tests/test_bits $(FUZZERS)
run_subset = $(foreach t,$(filter-out $(2),$(SUBSET)),$(if $(call named,$(t).c),"$(1)/$(t):build-$(1)/tests/$(t)")) \
             "$(1)/test_bits:build-$(1)/tests/test_bits 6" \
             $(foreach f,$(notdir $(FUZZERS)),"$(1)/$(f):build-$(1)/tests/$(f) -random 300 1 $(SEEDS_OF_$(f))")
sanitized = +$(MAKE) BUILD=build-$(1) OPT=-O1 SANITIZE="-fsanitize=$(1) -fno-sanitize-recover=all" subset-programs
asan-programs:
	$(call sanitized,address)
ubsan-programs:
	$(call sanitized,undefined)
asan: asan-programs
	@tests/run.sh -l build-address/logs $(call run_subset,address)
ubsan: ubsan-programs
	@tests/run.sh -l build-undefined/logs $(call run_subset,undefined)

# Do the tests notice? The programs that tests/mistakes/mistakes.txt names, in a build that can make mistakes on purpose.
mistakes-programs:
	+$(MAKE) BUILD=build-mistakes OPT=-O1 $(addprefix build-mistakes/tests/,$(sort $(shell sed -n 's/^[a-z][a-z0-9_]*  *[^ ]*  *\([^ ]*\).*/\1/p' tests/mistakes/mistakes.txt)))
mistakes: mistakes-programs
	@tests/mistakes/mistakes.sh build-mistakes

# Another processor: cross-compiled, run under an emulator. The golden bits must be the same there.
SYSROOT := build-arm64/sysroot
ARM64_LINES ?= 6
arm64-programs:
	tools/scripts/arm64-sysroot.sh $(SYSROOT)
	+$(MAKE) BUILD=build-arm64 CC=aarch64-linux-gnu-gcc RUNNER="qemu-aarch64 -L $(SYSROOT)" \
	    CFLAGS="-g -isystem $(SYSROOT)/usr/include -L$(SYSROOT)/usr/lib/aarch64-linux-gnu -Wl,-rpath-link,$(SYSROOT)/usr/lib/aarch64-linux-gnu" \
	    arm64-subset
arm64-subset: all $(BUILD)/tests/checkasm $(BUILD)/tests/test_bits
run_arm64 = "arm64/checkasm:qemu-aarch64 -L $(SYSROOT) build-arm64/tests/checkasm --quick" \
            "arm64/test_bits:qemu-aarch64 -L $(SYSROOT) build-arm64/tests/test_bits $(ARM64_LINES)"
arm64: arm64-programs
	@tests/run.sh -l build-arm64/logs $(run_arm64)

# Older CPUs than this one, emulated. Under the emulator oneDNN's 512 rows take minutes: test_bench runs without it, with oneDNN
# told to use nothing newer than AVX2.
HASWELL_LINES ?= 2
on_haswell = tests/older-cpus.sh Haswell $(BUILD)
run_older  = "haswell/test_bits:$(on_haswell)/tests/test_bits $(HASWELL_LINES)" "haswell/checkasm:$(on_haswell)/tests/checkasm --quick" \
             "haswell/bench:$(on_haswell)/verbatim bench golden/tiny/v3-mtp3 --rounds 1 --threads 1 --only prefill" \
             "haswell/demo:$(on_haswell)/verbatim demo golden/tale --tokens 5,6 -n 12 --rounds 1" "haswell/checkops_onednn:$(on_haswell)/tests/checkops_onednn" "haswell/test_prefill:$(on_haswell)/tests/test_prefill --quick" \
             "avx2/test_bench:env ONEDNN_MAX_CPU_ISA=AVX2 $(BUILD)/tests/test_bench" "nehalem/verbatim:tests/older-cpus.sh no-fma $(BUILD)/verbatim"
older-cpus: all $(addprefix $(BUILD)/tests/,test_bits checkasm checkops_onednn test_prefill test_bench)
	@tests/run.sh -l $(BUILD)/logs $(run_older)

# Other compilers and levels of optimisation: the golden bits once more. Clang needs libomp; without them it is skipped.
CROSS       := gcc-O0 gcc-O3 clang-O0 clang-O3
CROSS_LINES ?= 6
has_clang    = $(shell echo 'int main(void) { return 0; }' | clang -fopenmp -x c -o /dev/null - 2>/dev/null && echo yes)
cross_here   = $(if $(has_clang),$(CROSS),$(filter-out clang%,$(CROSS)))
crossbuild-programs:
	+for c in $(cross_here); do $(MAKE) BUILD=build-$$c CC=$${c%-*} OPT=-$${c#*-} build-$$c/tests/test_bits || exit 1; done
run_cross    = $(foreach c,$(cross_here),"cross/$(c):build-$(c)/tests/test_bits $(CROSS_LINES)") \
               $(if $(has_clang),,"cross/clang:echo skipped: clang with libomp is not installed")
crossbuild: crossbuild-programs
	@tests/run.sh -l build/logs $(run_cross)

test-deps:
	tools/scripts/install-deps.sh test
test-programs: $(TESTS) $(FUZZERS) $(BUILD)/tests/checkasm $(TSAN_CREW)

# The longest first, so that no core waits for one of them at the end.
LONG := $(patsubst %,$(BUILD)/tests/%,test_properties test_bits test_quantised test_prefill test_rejection test_truth test_diff test_precision test_forced \
          checkops_attention)
run_native = "layers:tools/scripts/layers $(BUILD)" "tests/layers:tests/layers.sh $(BUILD)" "docs:tests/docs.py $(BUILD)" $(filter $(LONG),$(TESTS)) $(BUILD)/tests/checkasm tests/install.sh tests/python.sh \
             "tsan/crew:$(TSAN_CREW)" "browser:tests/browser.sh $(BUILD)/verbatim" $(filter-out $(LONG),$(TESTS)) $(call fuzz_smoke)

# One sanitizer build for both in `make test`; test_session and test_session_file take minutes there and are left to `make asan` and `make ubsan`.
test: test-deps
	+$(MAKE) -j2 all test-programs
	+$(MAKE) -j2 arm64-programs
	+$(MAKE) -j2 BUILD=build-sanitized OPT=-O1 SANITIZE="-fsanitize=address,undefined -fno-sanitize-recover=all" subset-programs
	+$(MAKE) -j2 mistakes-programs
	+$(MAKE) -j2 crossbuild-programs
	@tests/run.sh -l $(BUILD)/logs $(run_arm64) $(run_native) $(run_older) $(run_cross) "mistakes:tests/mistakes/mistakes.sh build-mistakes" $(call run_subset,sanitized,test_session test_session_file)

test-all: test
	@tests/run.sh -l $(BUILD)/logs "test_properties_all:$(BUILD)/tests/test_properties --all" \
	    "avx2/test_prefill:env ONEDNN_MAX_CPU_ISA=AVX2 $(BUILD)/tests/test_prefill"

fuzz: $(FUZZERS)
	@tests/run.sh -l $(BUILD)/logs $(subst -random $(FUZZ_RUNS),-random 300000,$(call fuzz_smoke))

checkasm: $(BUILD)/tests/checkasm
	$<
checkasm-bench: $(BUILD)/tests/checkasm
	$< --bench

docs: all
	tests/docs.py $(BUILD)

# Before each commit: under a minute after a change of one line, and nothing is installed. `make test` is what counts.
CHECKED := $(call programs,checkops_linear.c checkops_attention.c checkops_router.c test_sampler.c test_config.c test_template.c \
           test_cli_errors.c)
check: all $(BUILD)/tests/checkasm $(BUILD)/tests/test_bits $(CHECKED)
	@tests/run.sh -l $(BUILD)/logs "layers:tools/scripts/layers $(BUILD)" "docs:tests/docs.py $(BUILD)" "checkasm:$(BUILD)/tests/checkasm --quick" \
	    "test_bits:$(BUILD)/tests/test_bits 6" $(CHECKED)

layers: $(LIB_OBJ) $(REF_OBJ) $(TOOL_OBJ)
	tools/scripts/layers $(BUILD)

.PHONY: check docs test-deps test-programs subset-programs asan-programs ubsan-programs arm64 arm64-programs arm64-subset mistakes mistakes-programs \
        crossbuild crossbuild-programs older-cpus
