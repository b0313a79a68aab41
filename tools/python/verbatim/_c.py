"""verbatim.h for ctypes: its enums and structs, in its order. Its functions are in _functions.py.

tests/test_layout.py compiles a C program that compares all of this with the header and says what to add. Names are those
of the header; fields that Python does not use stay zero, which means the default.
"""

import ctypes as C
import enum

VERSION = "0.1.0"  # of the header that this file follows; a library of another version is refused
MAX_DRAFT = 15
MAX_NODES = 64


class Code(enum.IntEnum):
    """enum vb_code"""

    OK = 0
    BAD_ARGUMENT = -1
    IO = -2
    BAD_CHECKPOINT = -3
    UNSUPPORTED = -4
    NO_MEMORY = -5
    NOT_FINITE = -6
    STOPPED = -7
    DEVICE = -8


class Finish(enum.IntEnum):
    """enum vb_finish"""

    LENGTH = 0
    STOP = 1
    STOPPED = 2


class Reject(enum.IntEnum):
    """enum vb_reject"""

    OTHER_TOKEN = 0
    CHANCE = 1
    MASKED = 2
    CUT_OFF = 3
    RANK = 4
    DELTA = 5


class Options(C.Structure):
    """A struct of options, which begins with its size."""

    def __init__(self, **fields):
        super().__init__(C.sizeof(self), **fields)


class vb_error(C.Structure):
    _fields_ = [("code", C.c_int), ("message", C.c_char * 512)]


class vb_allocator(C.Structure):
    _fields_ = [("alloc", C.c_void_p), ("free", C.c_void_p), ("context", C.c_void_p)]


class vb_offload(Options):
    _fields_ = [
        ("size", C.c_size_t),
        ("device", C.c_char_p),
        ("layers", C.c_int32),
        ("without_experts", C.c_int32),
    ]


class vb_device_facts(C.Structure):
    _fields_ = [
        ("name", C.c_char * 128),
        ("why_not", C.c_char * 256),
        ("memory", C.c_size_t),
        ("taken", C.c_size_t),
        ("weight_bytes", C.c_size_t),
        ("layers", C.c_int32),
        ("all_layers", C.c_int32),
        ("attentions", C.c_int32),
        ("heads", C.c_int32),
        ("no_memory", C.c_int32),
    ]


class vb_model_options(Options):
    _fields_ = [
        ("size", C.c_size_t),
        ("allocator", vb_allocator),
        ("precision", C.c_char_p),
        ("cache_type", C.c_char_p),
        ("conventions", C.c_char_p),
        ("numa", C.c_char_p),
        ("repack", C.c_char_p),
        ("repack_cache", C.c_char_p),
        ("threads", C.c_int32),
        ("progress", C.c_void_p),
        ("progress_context", C.c_void_p),
        ("ranks", C.c_void_p),
        ("offload", C.POINTER(vb_offload)),
    ]


class vb_placement(C.Structure):
    _fields_ = [
        ("nodes", C.c_int32),
        ("pages", C.c_size_t),
        ("in_place", C.c_size_t),
        ("moved", C.c_size_t),
        ("seconds", C.c_double),
        ("failed", C.c_int),
        ("why_not", C.c_char * 256),
    ]


mask_callback = C.CFUNCTYPE(C.c_int, C.c_void_p, C.POINTER(C.c_int32), C.c_size_t, C.POINTER(C.c_ubyte))


class vb_utf8(C.Structure):
    _fields_ = [("pending", C.c_ubyte * 4), ("count", C.c_int)]


class vb_model_facts(C.Structure):
    _fields_ = [
        ("architecture", C.c_char_p),
        ("precision", C.c_char_p),
        ("cache_type", C.c_char_p),
        ("layers", C.c_int32),
        ("mtp_modules", C.c_int32),
        ("attention_heads", C.c_int32),
        ("rope_halves", C.c_int),
        ("no_groups", C.c_int),
        ("no_query_scale", C.c_int),
        ("copied_bytes", C.c_size_t),
        ("copy_seconds", C.c_double),
        ("repack_cache", C.c_int),
        ("repack_cache_note", C.c_char * 256),
        ("conventions", C.c_char * 512),
    ]


class vb_convention(C.Structure):
    _fields_ = [("name", C.c_char_p), ("values", C.c_char_p * 4), ("changes_output", C.c_int), ("who", C.c_char_p)]


class vb_system(C.Structure):
    _fields_ = [
        ("name", C.c_char_p),
        ("conventions", C.c_char_p),
        ("draft", C.c_char_p),
        ("evidence", C.c_char_p),
        ("changes_output", C.c_int),
    ]


class vb_quantize_options(Options):
    _fields_ = [("size", C.c_size_t), ("type", C.c_char_p), ("embedding_type", C.c_char_p), ("head_type", C.c_char_p)]


class vb_tensor(C.Structure):
    _fields_ = [
        ("name", C.c_char_p),
        ("dtype", C.c_char_p),
        ("ndim", C.c_int32),
        ("shape", C.c_int64 * 4),
        ("data", C.c_void_p),
        ("bytes", C.c_size_t),
        ("file", C.c_char_p),
        ("quantized", C.c_int),
        ("reserved", C.c_uint64 * 2),
    ]


class vb_quantized_tensor(C.Structure):
    _fields_ = [
        ("name", C.c_char_p),
        ("type", C.c_char_p),
        ("role", C.c_char_p),
        ("kept", C.c_int),
        ("bytes", C.c_size_t),
        ("ndim", C.c_int32),
        ("shape", C.c_size_t * 3),
    ]


class vb_sampling(C.Structure):
    _fields_ = [
        ("temperature", C.c_float),
        ("top_k", C.c_int32),
        ("top_p", C.c_float),
        ("min_p", C.c_float),
        ("seed", C.c_uint64),
        ("repetition_penalty", C.c_float),
        ("presence_penalty", C.c_float),
        ("frequency_penalty", C.c_float),
        ("bias_tokens", C.POINTER(C.c_int32)),
        ("bias_values", C.POINTER(C.c_float)),
        ("bias_count", C.c_int32),
        ("mask", mask_callback),
        ("mask_context", C.c_void_p),
        ("acceptance", C.c_char_p),
        ("draft_sample_method", C.c_char_p),
        ("relaxed_topk", C.c_int32),
        ("relaxed_delta", C.c_float),
        ("thinking_begin", C.c_int32),
        ("thinking_end", C.c_int32),
        ("reserved", C.c_uint64 * 8),
    ]


class vb_tap_row(C.Structure):
    _fields_ = [
        ("sequence", C.c_int32),
        ("token", C.c_int32),
        ("index", C.c_int32),
        ("position", C.c_int32),
        ("slot", C.c_int32),
        ("draft", C.c_int32),
        ("hidden_of", C.c_int32),
        ("hidden_depth", C.c_int32),
        ("parent", C.c_int32),
        ("reserved", C.c_int32 * 7),
    ]


class vb_tap(C.Structure):
    _fields_ = [
        ("name", C.c_char_p),
        ("layer", C.c_int32),
        ("depth", C.c_int32),
        ("pass", C.c_uint64),
        ("rows", C.c_size_t),
        ("row", C.POINTER(vb_tap_row)),
        ("outer", C.c_size_t),
        ("inner", C.c_size_t),
        ("stride", C.c_size_t),
        ("outer_stride", C.c_size_t),
        ("integers", C.c_int),
        ("data", C.c_void_p),
    ]


class vb_trace(C.Structure):
    _fields_ = [
        ("kind", C.c_uint),  # enum vb_trace_kind
        ("sequence", C.c_int32),
        ("depth", C.c_int32),
        ("round", C.c_uint64),
        ("first", C.c_size_t),
        ("count", C.c_size_t),
        ("row", C.POINTER(vb_tap_row)),
        ("token", C.c_int32),
        ("draft", C.c_int32),
    ]


tap_callback = C.CFUNCTYPE(None, C.c_void_p, C.POINTER(vb_tap))
trace_callback = C.CFUNCTYPE(None, C.c_void_p, C.POINTER(vb_trace))
stop_callback = C.CFUNCTYPE(C.c_int, C.c_void_p)
progress_callback = C.CFUNCTYPE(None, C.c_void_p, C.c_size_t, C.c_size_t)
draft_callback = C.CFUNCTYPE(C.c_int, C.c_void_p, C.POINTER(C.c_int32), C.c_size_t, C.POINTER(C.c_int32), C.c_int)


class vb_tree_shape(C.Structure):
    _fields_ = [
        ("topk", C.c_int32),
        ("nodes", C.c_int32),
    ]


class vb_drafting(C.Structure):
    _fields_ = [
        ("method", C.c_char_p),
        ("tokens", C.c_int32),
        ("automatic", C.c_int),
        ("p_min", C.c_float),
        ("tree", vb_tree_shape),
        ("settings", C.c_char_p),
        ("model", C.c_void_p),
        ("vocab", C.c_void_p),
        ("head", C.c_char_p),
        ("callback", draft_callback),
        ("context", C.c_void_p),
        ("reserved", C.c_uint64 * 8),
    ]


class vb_draft_method(C.Structure):
    _fields_ = [
        ("name", C.c_char_p),
        ("about", C.c_char_p),
        ("settings", C.c_char_p),
        ("needs_modules", C.c_int),
        ("needs_model", C.c_int),
        ("needs_head", C.c_int),
        ("needs_callback", C.c_int),
        ("trees", C.c_int),
        ("by_history", C.c_int),
        ("keeps_state", C.c_int),
    ]


class vb_ranks_options(Options):
    _fields_ = [
        ("size", C.c_size_t),
        ("allocator", vb_allocator),
        ("rank", C.c_int32),
        ("count", C.c_int32),
        ("weights", C.POINTER(C.c_uint32)),
        ("all_gather", C.c_void_p),
        ("context", C.c_void_p),
        ("host", C.c_char_p),
        ("threads", C.c_int32),
        ("isa", C.c_char_p),
    ]


class vb_rank_facts(C.Structure):
    _fields_ = [
        ("host", C.c_char * 64),
        ("weight_bytes", C.c_size_t),
        ("resident_bytes", C.c_size_t),
        ("passes", C.c_uint64),
        ("gathers", C.c_uint64),
        ("bytes", C.c_uint64),
        ("seconds", C.c_double),
    ]


class vb_routes(C.Structure):
    _fields_ = [
        ("experts", C.POINTER(C.c_int32)),
        ("tokens", C.c_size_t),
        ("layers", C.c_int32),
        ("top_k", C.c_int32),
        ("kept", C.POINTER(C.c_int32)),
        ("index_topk", C.c_int32),
        ("reserved", C.c_uint64 * 4),
    ]


class vb_session_options(Options):
    _fields_ = [
        ("size", C.c_size_t),
        ("context", C.c_int32),
        ("prefill_chunk", C.c_int32),
        ("prefill", C.c_char_p),
        ("threads", C.c_int32),
        ("exact_threads", C.c_int32),
        ("isa", C.c_char_p),
        ("sampling", vb_sampling),
        ("drafting", vb_drafting),
        ("progress", progress_callback),
        ("progress_context", C.c_void_p),
        ("stop", stop_callback),
        ("stop_context", C.c_void_p),
        ("tap", tap_callback),
        ("tap_context", C.c_void_p),
        ("tap_scores", C.c_int),
        ("trace", trace_callback),
        ("trace_context", C.c_void_p),
        ("routes", vb_routes),
        ("record_routes", C.c_int),
        ("record_kept", C.c_int),
        ("cpu_layers", C.c_int32),
        ("sequence", C.c_int32),
        ("padded", C.c_int),
        ("poison_cut_rows", C.c_int),
    ]


class vb_thread_use(C.Structure):
    _fields_ = [
        ("most", C.c_int32),
        ("mean", C.c_double),
        ("passes", C.c_size_t),
        ("left_out", C.c_size_t),
        ("waited", C.c_double),
    ]


class vb_event(C.Structure):
    _fields_ = [
        ("token", C.c_int32),
        ("index", C.c_size_t),
        ("draft_depth", C.c_int),
        ("logits", C.POINTER(C.c_float)),
        ("text_bytes", C.c_size_t),
        ("draft", C.c_int),
    ]


event_callback = C.CFUNCTYPE(C.c_int, C.c_void_p, C.POINTER(vb_event))


class vb_result(C.Structure):
    _fields_ = [
        ("tokens", C.c_size_t),
        ("finish", C.c_uint),  # enum vb_finish
        ("fingerprint", C.c_uint64),
        ("forwards", C.c_size_t),
        ("drafted", C.c_size_t),
        ("accepted", C.c_size_t),
        ("accepted_by_depth", C.c_size_t * MAX_DRAFT),
        ("drafted_by_depth", C.c_size_t * MAX_DRAFT),
        ("draft_failures", C.c_size_t),
        ("prefill_tokens", C.c_size_t),
        ("prefill_seconds", C.c_double),
        ("decode_seconds", C.c_double),
        ("draft_seconds", C.c_double),
        ("stop_string", C.c_int32),
        ("text_bytes", C.c_size_t),
        ("rejected_by_depth", C.c_size_t * MAX_DRAFT),
        ("first_reject", C.c_size_t * len(Reject)),
        ("relaxed", C.c_size_t),
        ("cached_tokens", C.c_size_t),
        ("preemptions", C.c_size_t),
        ("relaxed_nats", C.c_double),
    ]


class vb_generate_options(Options):
    _fields_ = [
        ("size", C.c_size_t),
        ("max_tokens", C.c_size_t),
        ("ignore_eos", C.c_int),
        ("fingerprint", C.c_int),
        ("callback", event_callback),
        ("context", C.c_void_p),
        ("tokenizer", C.c_void_p),
        ("stop_tokens", C.POINTER(C.c_int32)),
        ("stop_token_count", C.c_size_t),
        ("stop", C.POINTER(C.c_char_p)),
        ("stop_count", C.c_size_t),
    ]


class vb_batch_options(Options):
    _fields_ = [
        ("size", C.c_size_t),
        ("session", C.POINTER(vb_session_options)),
        ("max_sequences", C.c_int32),
        ("cache_tokens", C.c_int64),
        ("keep_finished", C.c_int32),
        ("keep_apart", C.c_int),
    ]


class vb_request_end(C.Structure):
    _fields_ = [
        ("id", C.c_int64),
        ("code", C.c_int),
        ("error", C.POINTER(vb_error)),
        ("tokens", C.POINTER(C.c_int32)),
        ("prompt", C.c_size_t),
        ("count", C.c_size_t),
        ("result", C.POINTER(vb_result)),
        ("routes", vb_routes),
    ]


row_callback = C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_int, C.c_size_t, C.POINTER(C.c_float), C.POINTER(C.c_float))
done_callback = C.CFUNCTYPE(None, C.c_void_p, C.POINTER(vb_request_end))


class vb_request(Options):
    _fields_ = [
        ("size", C.c_size_t),
        ("tokens", C.POINTER(C.c_int32)),
        ("count", C.c_size_t),
        ("sampling", C.POINTER(vb_sampling)),
        ("drafting", C.POINTER(vb_drafting)),
        ("session", C.c_void_p),
        ("routes", C.POINTER(vb_routes)),
        ("options", C.POINTER(vb_generate_options)),
        ("prompt_row", row_callback),
        ("done", done_callback),
        ("context", C.c_void_p),
    ]


class vb_batch_state(C.Structure):
    _fields_ = [
        ("waiting", C.c_size_t),
        ("running", C.c_size_t),
        ("done", C.c_size_t),
        ("paused", C.c_size_t),
        ("kept", C.c_size_t),
        ("passes", C.c_size_t),
        ("preemptions", C.c_size_t),
        ("shared_tokens", C.c_size_t),
        ("cache_tokens", C.c_size_t),
        ("cache_tokens_used", C.c_size_t),
        ("most_cache_tokens_used", C.c_size_t),
        ("cache_bytes", C.c_size_t),
        ("pass_bytes", C.c_size_t),
        ("draft_bytes", C.c_size_t),
    ]


file_callback = C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_size_t, C.c_size_t)


class vb_file_options(Options):
    _fields_ = [
        ("size", C.c_size_t),
        ("without_hidden", C.c_int),
        ("replace", C.c_int),
        ("progress", file_callback),
        ("progress_context", C.c_void_p),
    ]


class vb_session_info(C.Structure):
    _fields_ = [
        ("version", C.c_uint32),
        ("bytes", C.c_size_t),
        ("tokens", C.c_size_t),
        ("computed", C.c_size_t),
        ("context", C.c_size_t),
        ("checkpoint", C.c_char * 256),
        ("architecture", C.c_char * 64),
        ("precision", C.c_char * 16),
        ("cache_type", C.c_char * 16),
        ("conventions", C.c_char * 512),
        ("weights", C.c_char * 32),
        ("prefill", C.c_char * 16),
        ("routes", C.c_char * 32),
        ("draft", C.c_char * 32),
        ("draft_conventions", C.c_char * 512),
        ("with_hidden", C.c_int),
        ("drafter_bytes", C.c_size_t),
    ]


class vb_trainer_options(Options):
    _fields_ = [
        ("size", C.c_size_t),
        ("part", C.c_char_p),
        ("loss", C.c_char_p),
        ("loss_factor", C.c_double),
        ("soft_targets", C.c_double),
        ("depths", C.c_int32),
        ("modules", C.c_int32),
        ("new_weights", C.c_int),
        ("ends", C.c_char_p),
        ("seed", C.c_uint64),
        ("beta1", C.c_double),
        ("beta2", C.c_double),
        ("eps", C.c_double),
        ("weight_decay", C.c_double),
        ("clip_norm", C.c_double),
        ("bias_update_rate", C.c_double),
        ("micro_tokens", C.c_size_t),
        ("threads", C.c_int32),
        ("isa", C.c_char_p),
        ("head", C.c_char_p),
        ("draft_tokens", C.POINTER(C.c_int32)),
        ("draft_vocab_size", C.c_size_t),
    ]


class vb_train_sequence(C.Structure):
    _fields_ = [("tokens", C.POINTER(C.c_int32)), ("count", C.c_size_t), ("loss_mask", C.POINTER(C.c_ubyte)), ("reserved", C.c_uint64 * 2)]


class vb_train_losses(C.Structure):
    _fields_ = [
        ("total", C.c_double),
        ("main", C.c_double),
        ("by_depth", C.c_double * MAX_DRAFT),
        ("depths", C.c_int32),
        ("rows", C.c_int64),
        ("depth_rows", C.c_int64 * MAX_DRAFT),
    ]


class vb_train_tensor(C.Structure):
    _fields_ = [
        ("name", C.c_char_p),
        ("ndim", C.c_int32),
        ("shape", C.c_int64 * 2),
        ("count", C.c_size_t),
        ("decays", C.c_int),
        ("is_new", C.c_int),
        ("w", C.c_void_p),
        ("g", C.c_void_p),
        ("m", C.c_void_p),
        ("v", C.c_void_p),
    ]


STRUCTS = [vb_error, vb_allocator, vb_model_options, vb_placement, vb_sampling, vb_tap_row, vb_tap, vb_trace, vb_tree_shape, vb_drafting,
           vb_draft_method, vb_session_options, vb_thread_use, vb_event, vb_result, vb_generate_options,
           vb_batch_options, vb_request_end, vb_request, vb_batch_state, vb_offload, vb_device_facts, vb_file_options, vb_session_info,
           vb_model_facts, vb_convention, vb_system, vb_quantize_options, vb_quantized_tensor, vb_ranks_options, vb_rank_facts, vb_routes,
           vb_tensor, vb_utf8, vb_trainer_options, vb_train_sequence, vb_train_losses, vb_train_tensor]
