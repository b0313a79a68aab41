test_trace_batch.o: tests/cli/test_trace_batch.c tests/support/process.h \
  tests/support/files.h tests/support/test.h

tests/support/process.h:

tests/support/files.h:

tests/support/test.h:
