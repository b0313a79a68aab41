# tests/tests.mk -- what is built from tests/, and what `make test` runs. Included by the Makefile.

TESTS    := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/checkops_*.c tests/test_*.c))
FUZZERS  := $(patsubst tests/%.c,$(BUILD)/tests/%,$(filter-out tests/fuzz_main.c,$(wildcard tests/fuzz_*.c)))
CHECKASM := $(patsubst tests/%.c,$(BUILD)/tests/%.o,$(wildcard tests/checkasm*.c))
LIBRARIES := $(BUILD)/libreference.a $(BUILD)/libverbatim.a

link = $(CC) $(BASE) $(CFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(filter %.a,$^)

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

# time-boxed: N mutations of each seed, the same every time
FUZZ_RUNS ?= 20000
FUZZ_SMOKE = $(foreach f,$(FUZZERS),"$(f) -random $(FUZZ_RUNS) 1")

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

.PHONY: test-deps test-programs
