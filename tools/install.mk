# tools/install.mk -- the shared library, and what `make install` puts where. Included by the Makefile.

VERSION := $(shell sed -n 's/^\#define VB_VERSION "\(.*\)"/\1/p' engine/verbatim.h)
SONAME  := libverbatim.so.0
PREFIX  ?= /usr/local
LIBDIR  ?= $(PREFIX)/lib
NM      ?= $(shell $(CC) -print-prog-name=nm)
OBJCOPY ?= $(shell $(CC) -print-prog-name=objcopy)
# What the libraries themselves need; libmd belongs to the command.
REQUIRES := sleef libpcre2-8 jansson $(if $(HAVE_NUMA),numa)
LIB_LIBS := -lsleef -lpcre2-8 -ljansson -lm $(if $(HAVE_NUMA),-lnuma)

# -Bsymbolic: a program's own function of the same name is not called from inside. The map lists the names that are exported.
MAP     := engine/libverbatim.map
SHARED   = -shared -Wl,-soname,$(SONAME),-Bsymbolic,-z,defs,--version-script=$(MAP),--no-undefined-version
$(BUILD)/$(SONAME): $(LIB_OBJ) $(MAP)
	$(call say,LD $@)
	$(Q)$(CC) $(BASE) $(CFLAGS) $(SHARED) -o $@ $(LIB_OBJ) $(LIB_LIBS)
	$(Q)ln -sf $(SONAME) $(BUILD)/libverbatim.so

# The same library for the Python wheel: it finds the libraries that it needs in its own directory.
$(BUILD)/wheel/$(SONAME): $(LIB_OBJ) $(MAP)
	@mkdir -p $(@D)
	$(call say,LD $@)
	$(Q)$(CC) $(BASE) $(CFLAGS) $(SHARED) -Wl,-rpath,'$$ORIGIN' -o $@ $(LIB_OBJ) $(LIB_LIBS)
# And the command. DT_RPATH, unlike DT_RUNPATH, also counts for what these libraries need themselves.
$(BUILD)/wheel/verbatim: $(TOOL_OBJ) $(BUILD)/libreference.a $(BUILD)/internal.a
	@mkdir -p $(@D)
	$(call say,LD $@)
	$(Q)$(CC) $(BASE) $(CFLAGS) -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/../lib' -o $@ $^ $(LIBS) $(EDIT) $(HTTP)
wheel: $(BUILD)/wheel/$(SONAME) $(BUILD)/wheel/verbatim
	$(Q)tools/scripts/wheel.sh $(BUILD) $^

# The static library for other programs. Global names that the map does not list get the prefix vb__, so that a program
# may have an `argmax` of its own. Members stay separate, so that a program links only those that it needs.
$(BUILD)/libverbatim.a: $(BUILD)/internal.a $(MAP)
	$(call say,AR $@)
	$(Q)$(NM) -g --defined-only $< | awk 'NR == FNR {public[$$1]; next} NF == 3 && !($$3 ";" in public) {print $$3, "vb__" $$3}' \
	    $(MAP) - | LC_ALL=C sort -u >$@.names
	$(Q)$(OBJCOPY) --redefine-syms=$@.names $< $@.part && mv $@.part $@

$(BUILD)/install/verbatim.1: $(BUILD)/verbatim tools/scripts/man.sh
	@mkdir -p $(@D)
	$(Q)tools/scripts/man.sh 1 "$(RUNNER) $(BUILD)/verbatim" $(VERSION) >$@.part && mv $@.part $@
$(BUILD)/install/verbatim.3: $(wildcard engine/verbatim*.h) examples/generate.c tools/scripts/man.sh
	@mkdir -p $(@D)
	$(Q)tools/scripts/man.sh 3 engine/verbatim.h $(VERSION) >$@.part && mv $@.part $@

BIN := $(DESTDIR)$(PREFIX)/bin
INC := $(DESTDIR)$(PREFIX)/include
LIB := $(DESTDIR)$(LIBDIR)
MAN := $(DESTDIR)$(PREFIX)/share/man

install: all $(BUILD)/install/verbatim.1 $(BUILD)/install/verbatim.3
	install -d $(BIN) $(INC) $(LIB)/pkgconfig $(MAN)/man1 $(MAN)/man3
	install -m 755 $(BUILD)/verbatim $(BIN)/verbatim
	install -m 644 $(wildcard engine/verbatim*.h) $(INC)
	install -m 644 $(BUILD)/libverbatim.a $(LIB)/libverbatim.a
	install -m 644 $(BUILD)/$(SONAME) $(LIB)/libverbatim.so.$(VERSION)
	ln -sf libverbatim.so.$(VERSION) $(LIB)/$(SONAME)
	ln -sf $(SONAME) $(LIB)/libverbatim.so
	printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$(LIBDIR)' 'includedir=$${prefix}/include' '' 'Name: Verbatim' \
	    'Description: reference engine for DeepSeek-style language models' 'Version: $(VERSION)' \
	    'Requires.private: $(REQUIRES)' 'Libs: -L$${libdir} -lverbatim' 'Libs.private: -lgomp -lm' \
	    'Cflags: -I$${includedir}' >$(LIB)/pkgconfig/verbatim.pc
	install -m 644 $(BUILD)/install/verbatim.1 $(MAN)/man1/verbatim.1
	install -m 644 $(BUILD)/install/verbatim.3 $(MAN)/man3/verbatim.3
	@[ -n "$(DESTDIR)" ] || /sbin/ldconfig 2>/dev/null || true # so that programs find it; for root only

uninstall:
	rm -f $(BIN)/verbatim $(patsubst engine/%,$(INC)/%,$(wildcard engine/verbatim*.h)) $(LIB)/libverbatim.a $(LIB)/libverbatim.so $(LIB)/$(SONAME) \
	    $(LIB)/libverbatim.so.$(VERSION) $(LIB)/pkgconfig/verbatim.pc $(MAN)/man1/verbatim.1 $(MAN)/man3/verbatim.3

.PHONY: install uninstall wheel
