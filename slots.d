slots.o: tools/trace/slots.c tools/trace/slots.h engine/verbatim.h \
  engine/verbatim_routes.h engine/verbatim_batch.h \
  engine/verbatim_files.h engine/verbatim_model.h \
  engine/verbatim_tensors.h engine/verbatim_text.h

tools/trace/slots.h:

engine/verbatim.h:

engine/verbatim_routes.h:

engine/verbatim_batch.h:

engine/verbatim_files.h:

engine/verbatim_model.h:

engine/verbatim_tensors.h:

engine/verbatim_text.h:
