# tests/tests.mk -- what is built from tests/, and what `make test` runs. Included by the Makefile.

TESTS    := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/checkops_*.c tests/test_*.c))
FUZZERS  := $(patsubst tests/%.c,$(BUILD)/tests/%,$(filter-out tests/fuzz_main.c,$(wildcard tests/fuzz_*.c)))
CHECKASM := $(patsubst tests/%.c,$(BUILD)/tests/%.o,$(wildcard tests/checkasm*.c))
LIBRARIES := $(BUILD)/libreference.a $(BUILD)/libverbatim.a

link = $(Q)echo '  LD $@'; $(CC) $(BASE) $(CFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^)

$(BUILD)/tests/test_%: $(BUILD)/tests/test_%.o $(LIBRARIES)
	$(link) -lcmocka $(LIBS)
$(BUILD)/tests/fuzz_%: $(BUILD)/tests/fuzz_%.o $(BUILD)/tests/fuzz_main.o $(LIBRARIES)
	$(link) $(LIBS)
$(BUILD)/tests/checkasm: $(CHECKASM) $(LIBRARIES)
	$(link) $(LIBS)
$(BUILD)/tests/checkops_%: $(BUILD)/tests/checkops_%.o $(LIBRARIES)
	$(link) -lcmocka $(LIBS)
$(BUILD)/tests/sleef_hash: $(BUILD)/tests/sleef_hash.o $(BUILD)/libverbatim.a
	$(link) $(LIBS)

.SECONDARY:

# Time-boxed: so many mutations of the seeds, the same every time. `make fuzz` is longer.
FUZZ_RUNS ?= 3000
SEEDS_OF_fuzz_safetensors := $(wildcard golden/tiny/v3-mtp3/*.safetensors)
SEEDS_OF_fuzz_config      := $(wildcard golden/tiny/*/config.json)
SEEDS_OF_fuzz_tokenizer   := golden/tokenizer/tokenizer.json
FUZZ_SMOKE = $(foreach f,$(FUZZERS),"$(f) -random $(FUZZ_RUNS) 1 $(SEEDS_OF_$(notdir $(f)))")

test-deps:
	tools/scripts/install-deps.sh test

test: test-deps
	$(MAKE) all test-programs
	tests/run.sh -l $(BUILD)/logs tools/scripts/layers.sh $(BUILD)/tests/checkasm $(TESTS) \
	    $(FUZZ_SMOKE)

test-programs: $(TESTS) $(FUZZERS) $(BUILD)/tests/checkasm

checkasm: $(BUILD)/tests/checkasm
	$<
checkasm-bench: $(BUILD)/tests/checkasm
	$< --bench

layers:
	tools/scripts/layers.sh

fuzz: $(FUZZERS)
	tests/run.sh -l $(BUILD)/logs $(subst -random $(FUZZ_RUNS),-random 300000,$(FUZZ_SMOKE))

# The named subset: what handles memory and files, and a run of every tiny checkpoint.
SUBSET := test_config test_checkpoint test_model test_tokenizer test_tokenizer_errors test_session test_sampler
sanitized = $(MAKE) BUILD=build-$@ OPT=-O1 SANITIZE="-fsanitize=$(1) -fno-sanitize-recover=all" subset
asan:
	$(call sanitized,address)
ubsan:
	$(call sanitized,undefined)
asan-ubsan:
	$(call sanitized,address$(comma)undefined)
comma := ,
SUBSET_PROGRAMS = $(filter $(SUBSET:%=$(BUILD)/tests/%),$(TESTS))
subset: $(SUBSET_PROGRAMS) $(BUILD)/tests/test_bits $(FUZZERS)
	ASAN_OPTIONS=detect_leaks=1 tests/run.sh -l $(BUILD)/logs $(SUBSET_PROGRAMS) "$(BUILD)/tests/test_bits 12" $(FUZZ_SMOKE)

# Another processor: cross-compiled, run under an emulator. The golden bits must be the same there.
SYSROOT := build-arm64/sysroot
arm64:
	tools/scripts/arm64-sysroot.sh $(SYSROOT)
	$(MAKE) BUILD=build-arm64 CC=aarch64-linux-gnu-gcc RUNNER="qemu-aarch64 -L $(SYSROOT)" \
	    CFLAGS="-g -isystem $(SYSROOT)/usr/include -L$(SYSROOT)/usr/lib/aarch64-linux-gnu -Wl,-rpath-link,$(SYSROOT)/usr/lib/aarch64-linux-gnu" \
	    arm64-programs
	tests/run.sh -l build-arm64/logs "qemu-aarch64 -L $(SYSROOT) build-arm64/tests/checkasm --quick" \
	    "qemu-aarch64 -L $(SYSROOT) build-arm64/tests/test_bits $(ARM64_LINES)"
ARM64_LINES ?= 4
arm64-programs: all $(BUILD)/tests/checkasm $(BUILD)/tests/test_bits

.PHONY: test-deps test-programs subset asan-ubsan arm64 arm64-programs
