test_trace_ranks.o: tests/cli/test_trace_ranks.c tests/support/process.h \
  tests/support/files.h tests/support/test.h

tests/support/process.h:

tests/support/files.h:

tests/support/test.h:
