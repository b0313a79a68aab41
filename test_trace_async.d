test_trace_async.o: tests/cli/test_trace_async.c tests/support/process.h \
  tests/support/files.h tests/support/test.h

tests/support/process.h:

tests/support/files.h:

tests/support/test.h:
