ranks.o: tools/trace/ranks.c tools/trace/ranks.h tools/trace/batch.h \
  tools/trace/record.h tools/cli/cli.h engine/base/json.h \
  engine/base/support.h engine/verbatim.h engine/verbatim_routes.h \
  engine/verbatim_batch.h engine/verbatim_files.h \
  engine/verbatim_model.h engine/verbatim_tensors.h \
  engine/verbatim_text.h

tools/trace/ranks.h:

tools/trace/batch.h:

tools/trace/record.h:

tools/cli/cli.h:

engine/base/json.h:

engine/base/support.h:

engine/verbatim.h:

engine/verbatim_routes.h:

engine/verbatim_batch.h:

engine/verbatim_files.h:

engine/verbatim_model.h:

engine/verbatim_tensors.h:

engine/verbatim_text.h:
