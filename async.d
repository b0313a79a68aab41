async.o: tools/trace/async.c tools/trace/async.h tools/trace/columns.h

tools/trace/async.h:

tools/trace/columns.h:
