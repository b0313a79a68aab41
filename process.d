process.o: tests/support/process.c tests/support/process.h \
  tests/support/files.h tests/support/test.h

tests/support/process.h:

tests/support/files.h:

tests/support/test.h:
