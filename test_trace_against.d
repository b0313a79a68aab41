test_trace_against.o: tests/cli/test_trace_against.c \
  tests/support/process.h tests/support/files.h tests/support/test.h

tests/support/process.h:

tests/support/files.h:

tests/support/test.h:
