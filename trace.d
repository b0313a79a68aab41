trace.o: engine/pass/trace.c engine/pass/trace.h engine/base/support.h \
  engine/verbatim.h engine/verbatim_routes.h engine/verbatim_batch.h \
  engine/verbatim_files.h engine/verbatim_model.h \
  engine/verbatim_tensors.h engine/verbatim_text.h engine/pass/forward.h \
  ops/op.h simd/kernels.h ops/clock.h ops/pace.h ops/placement.h \
  ops/rope.h engine/pass/kvcache.h ops/kv_rows.h engine/model/model.h \
  engine/base/mapping.h engine/files/checkpoint.h engine/model/config.h \
  engine/model/conventions.h ops/indexer.h ops/attention.h

engine/pass/trace.h:

engine/base/support.h:

engine/verbatim.h:

engine/verbatim_routes.h:

engine/verbatim_batch.h:

engine/verbatim_files.h:

engine/verbatim_model.h:

engine/verbatim_tensors.h:

engine/verbatim_text.h:

engine/pass/forward.h:

ops/op.h:

simd/kernels.h:

ops/clock.h:

ops/pace.h:

ops/placement.h:

ops/rope.h:

engine/pass/kvcache.h:

ops/kv_rows.h:

engine/model/model.h:

engine/base/mapping.h:

engine/files/checkpoint.h:

engine/model/config.h:

engine/model/conventions.h:

ops/indexer.h:

ops/attention.h:
