test_trace_session.o: tests/cli/test_trace_session.c \
  tests/support/process.h tests/support/files.h tests/support/test.h

tests/support/process.h:

tests/support/files.h:

tests/support/test.h:
