test_trace_example.o: tests/cli/test_trace_example.c engine/verbatim.h \
  engine/verbatim_routes.h engine/verbatim_batch.h \
  engine/verbatim_files.h engine/verbatim_model.h \
  engine/verbatim_tensors.h engine/verbatim_text.h \
  tests/support/process.h tests/support/files.h tests/support/test.h

engine/verbatim.h:

engine/verbatim_routes.h:

engine/verbatim_batch.h:

engine/verbatim_files.h:

engine/verbatim_model.h:

engine/verbatim_tensors.h:

engine/verbatim_text.h:

tests/support/process.h:

tests/support/files.h:

tests/support/test.h:
