/* The C API of dsv4 (C99 and later; every function of this header is in libdsv4).
 *
 *   dsv4_engine_options options = {sizeof options, "models/nano", NULL};
 *   dsv4_engine* engine;
 *   if (dsv4_engine_load(&options, &engine) != DSV4_OK) fprintf(stderr, "%s\n", dsv4_last_error());
 *
 * Rules for all functions:
 *  - A call that can fail returns a status and writes its results through its last pointers. On an error it has written
 *    nothing, except a needed length. dsv4_last_error() is then one line about it, for this thread.
 *  - A buffer of the caller comes with `size_t* n`: its capacity before the call, and the length of the result after
 *    it. If the result does not fit, or the buffer is NULL, the status is DSV4_TOO_SMALL, *n is the length that is
 *    needed, nothing else has changed, and the call may be repeated.
 *  - Text is UTF-8 with a length and without a NUL at its end. Names of files end with NUL.
 *  - Structs begin with `size`, which the caller sets to sizeof. Members that are 0 mean the default.
 *  - Handles are freed by the function with _free, which takes NULL. A session, a snapshot, a service and a server keep
 *    their engine, so the order does not matter. Using a handle after its _free is undefined.
 *  - One thread at a time uses an engine with its sessions and snapshots, except where a function says "any thread".
 *    Tokenizers, services and servers: any thread. While an engine has a service or a server, nothing else uses it.
 *  - Nothing is printed, no signal is touched, no exception leaves.
 *  - In a forked child, calls with handles of the parent return DSV4_WRONG_PROCESS (numbers: -1), and _free leaves them
 *    alone. The child may load its own.
 *  - Callbacks return 0 to continue. They run on the calling thread; callbacks of services and servers do not.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* The names that libdsv4 shows. */
#if defined(__GNUC__)
#define DSV4_C_API __attribute__((visibility("default")))
#else
#define DSV4_C_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t dsv4_status;
enum {
  DSV4_OK = 0,
  DSV4_INVALID_ARGUMENT = 1,   /* an argument that can never work */
  DSV4_NOT_FOUND = 2,          /* a file or a request does not exist */
  DSV4_DATA_LOSS = 3,          /* a file or a snapshot is damaged */
  DSV4_UNSUPPORTED = 4,        /* valid, but this build or device cannot do it */
  DSV4_RESOURCE_EXHAUSTED = 5, /* memory, context length, disk, queue */
  DSV4_CANCELLED = 6,          /* the caller asked to stop */
  DSV4_INTERNAL = 7,           /* a mistake of the library */
  DSV4_TOO_SMALL = 8,          /* a buffer of the caller; see above */
  DSV4_WRONG_PROCESS = 9       /* a handle of the parent process */
};

typedef struct dsv4_tokenizer dsv4_tokenizer;
typedef struct dsv4_decoder dsv4_decoder;
typedef struct dsv4_engine dsv4_engine;
typedef struct dsv4_session dsv4_session;
typedef struct dsv4_snapshot dsv4_snapshot;
typedef struct dsv4_sampler dsv4_sampler;
typedef struct dsv4_service dsv4_service;
typedef struct dsv4_server dsv4_server;

/* ---- Library */

DSV4_C_API const char* dsv4_version(void);         /* "0.2.0" */
DSV4_C_API const char* dsv4_build_info_json(void); /* {"version", "commit", "compiler", "cpu_features", ...} */
/* The line of this thread's last call that failed, valid until the next one fails; "": none. */
DSV4_C_API const char* dsv4_last_error(void);

/* ---- Text */

/* Reads DIR/tokenizer.json. */
DSV4_C_API dsv4_status dsv4_tokenizer_load(const char* dir, dsv4_tokenizer** tokenizer);
DSV4_C_API void dsv4_tokenizer_free(dsv4_tokenizer* tokenizer);

enum {
  DSV4_ENCODE_PLAIN = 1,     /* dsv4_encode: the text of special tokens stays text, for text that is not trusted */
  DSV4_DECODE_NO_SPECIAL = 1 /* dsv4_decode, dsv4_decoder_new: special tokens have no text */
};
/* ids: int32 [*num_ids], without BOS. Invalid UTF-8 becomes U+FFFD. */
DSV4_C_API dsv4_status dsv4_encode(const dsv4_tokenizer* tokenizer, const char* text, size_t length, uint32_t flags,
                                   int32_t* ids, size_t* num_ids);
DSV4_C_API dsv4_status dsv4_decode(const dsv4_tokenizer* tokenizer, const int32_t* ids, size_t num_ids, uint32_t flags,
                                   char* text, size_t* length);
/* The bytes of one token, which may be a part of a character; valid as long as the tokenizer. */
DSV4_C_API dsv4_status dsv4_token_bytes(const dsv4_tokenizer* tokenizer, int32_t id, const char** bytes,
                                        size_t* length);
DSV4_C_API int64_t dsv4_vocab_size(const dsv4_tokenizer* tokenizer); /* -1: NULL */
DSV4_C_API int32_t dsv4_bos(const dsv4_tokenizer* tokenizer);        /* -1: none */
DSV4_C_API int32_t dsv4_eos(const dsv4_tokenizer* tokenizer);        /* -1: none */

/* Decodes tokens one by one: `text` gets the complete characters that a token ends. Keeps the tokenizer. */
DSV4_C_API dsv4_status dsv4_decoder_new(const dsv4_tokenizer* tokenizer, uint32_t flags, dsv4_decoder** decoder);
DSV4_C_API void dsv4_decoder_free(dsv4_decoder* decoder);
DSV4_C_API dsv4_status dsv4_decoder_push(dsv4_decoder* decoder, int32_t id, char* text, size_t* length);
DSV4_C_API dsv4_status dsv4_decoder_finish(dsv4_decoder* decoder, char* text, size_t* length);

/* The prompt of a conversation: {"messages": [...], "tools": [...], "thinking": true, ...}. model_dir: the model whose
 * chat format it gets; NULL: the first release's. */
DSV4_C_API dsv4_status dsv4_render_chat(const char* request_json, size_t request_length, const char* model_dir,
                                        char* text, size_t* length);
/* Splits a model's output: {"reasoning_content", "content", "tool_calls"}. thinking: the prompt ended in reasoning. */
DSV4_C_API dsv4_status dsv4_parse_output(const char* text, size_t text_length, int thinking, char* message_json,
                                         size_t* length);

/* ---- Engine */

enum { DSV4_LOADING = 0, DSV4_PREFILL = 1 };
/* done, total: bytes (DSV4_LOADING) or tokens (DSV4_PREFILL). Not 0: the call ends with DSV4_CANCELLED. */
typedef int (*dsv4_progress_fn)(int phase, int64_t done, int64_t total, void* user);

typedef struct dsv4_engine_options {
  size_t size;
  const char* model_dir;
  const char* device;      /* NULL: "cpu"; "cuda", "cuda:1", "cuda:0,1" */
  const char* speculate;   /* NULL: "off"; "auto", "lookup", "mtp", "dspark" */
  int64_t draft_tokens;    /* per sequence and step */
  int64_t prefill_chunk;   /* prompt tokens per pass */
  int64_t max_context;     /* tokens */
  int64_t gpu_memory;      /* bytes */
  int64_t host_memory;     /* bytes */
  int32_t num_threads;     /* 0: one per core */
  int32_t batch_invariant; /* 1: prompts of every length as decode rows */
  dsv4_progress_fn progress;
  void* user; /* for progress */
} dsv4_engine_options;

typedef struct dsv4_model_info {
  size_t size;
  int64_t vocab_size;
  int64_t num_layers;
  int64_t hidden_size;
  int64_t max_context; /* tokens */
  int64_t weight_bytes;
  int64_t kv_fixed_bytes; /* of a session */
  double kv_bytes_per_token;
  int32_t bos;     /* -1: none */
  int32_t num_eos; /* of eos; at most 8 */
  int32_t eos[8];
} dsv4_model_info;

DSV4_C_API dsv4_status dsv4_engine_load(const dsv4_engine_options* options, dsv4_engine** engine);
DSV4_C_API void dsv4_engine_free(dsv4_engine* engine);
DSV4_C_API dsv4_status dsv4_engine_info(const dsv4_engine* engine, dsv4_model_info* info);
/* DSV4_OK until a GPU has failed; then only dsv4_engine_restart helps, after all sessions and snapshots are freed. */
DSV4_C_API dsv4_status dsv4_engine_health(const dsv4_engine* engine);
DSV4_C_API dsv4_status dsv4_engine_restart(dsv4_engine* engine);
DSV4_C_API int64_t dsv4_engine_kv_bytes(const dsv4_engine* engine);   /* of sessions and snapshots; -1: NULL */
DSV4_C_API int64_t dsv4_engine_free_bytes(const dsv4_engine* engine); /* for sessions; 0: not known; -1: NULL */
/* Any thread. While `stopped` is 1, calls that compute end with DSV4_CANCELLED, on a CPU within the time of a layer.
 * Complete chunks of a prompt stay appended; nothing else has changed. */
DSV4_C_API dsv4_status dsv4_engine_stop(dsv4_engine* engine, int stopped);
/* Describes a checkpoint and the memory that it needs, as a JSON object. Loads no weights. */
DSV4_C_API dsv4_status dsv4_inspect_json(const dsv4_engine_options* options, char* json, size_t* length);

/* ---- Sessions: a timeline of tokens */

DSV4_C_API dsv4_status dsv4_session_new(dsv4_engine* engine, dsv4_session** session);
DSV4_C_API dsv4_status dsv4_session_from(dsv4_engine* engine, const dsv4_snapshot* snapshot, dsv4_session** session);
DSV4_C_API void dsv4_session_free(dsv4_session* session);
DSV4_C_API int64_t dsv4_session_length(const dsv4_session* session); /* tokens; -1: NULL */
DSV4_C_API dsv4_status dsv4_session_tokens(const dsv4_session* session, int32_t* ids, size_t* num_ids);
/* Removes the tokens at positions from `length`: at most 8, or all. */
DSV4_C_API dsv4_status dsv4_truncate(dsv4_session* session, int64_t length);

/* Rows of logits, float32 [rows, vocab_size of dsv4_model_info]: none, after the last token, after every token. */
enum { DSV4_ROWS_NONE = 0, DSV4_ROWS_LAST = 1, DSV4_ROWS_ALL = 2 };
typedef int32_t dsv4_rows;
/* Appends a prompt, or one token. logits: the caller's memory of num_floats; DSV4_TOO_SMALL: nothing is appended. */
DSV4_C_API dsv4_status dsv4_append(dsv4_session* session, const int32_t* ids, size_t num_ids, dsv4_rows rows,
                                   float* logits, size_t num_floats);

typedef struct dsv4_step_item {
  size_t size;
  dsv4_session* session;
  const int32_t* ids;
  size_t num_ids;
  float* logits;
  size_t num_floats;
  int64_t prompt_tokens; /* 0: drawn tokens; otherwise all tokens of the prompt, in this step and in its others */
  dsv4_rows rows;
} dsv4_step_item;
/* One step of several sessions of the engine, each at most once. On an error no session has changed. */
DSV4_C_API dsv4_status dsv4_step(dsv4_engine* engine, const dsv4_step_item* items, size_t num_items);

/* ---- Drawing tokens */

typedef struct dsv4_bias {
  int32_t id;
  float bias; /* added to the logit; -INFINITY bans the token */
} dsv4_bias;

typedef struct dsv4_sampling {
  size_t size;
  float temperature;       /* 0: the likeliest token */
  float top_p;             /* (0, 1] */
  float min_p;             /* [0, 1] */
  float repeat_penalty;    /* 1: none */
  float presence_penalty;  /* [-2, 2] */
  float frequency_penalty; /* [-2, 2] */
  int64_t top_k;
  uint64_t seed;    /* with has_seed */
  int32_t has_seed; /* 0: a random seed */
  int32_t logprobs; /* 1: log-probabilities of the drawn token and of the num_top likeliest */
  int32_t num_top;
  int32_t reserved;
  const dsv4_bias* biases;
  size_t num_biases;
} dsv4_sampling;

typedef struct dsv4_logprob {
  int32_t id;
  float logprob; /* natural logarithm */
} dsv4_logprob;

typedef struct dsv4_token {
  size_t size;
  int32_t id;
  float logprob;   /* with dsv4_sampling.logprobs */
  int32_t drafted; /* 1: an accepted draft token */
  int32_t reserved;
  dsv4_logprob* top; /* dsv4_sample: memory of the caller, for num_top of dsv4_sampling; likeliest first */
  size_t num_top;    /* capacity before, number after */
} dsv4_token;

DSV4_C_API dsv4_status dsv4_sampler_new(const dsv4_sampling* sampling, int64_t vocab_size, dsv4_sampler** sampler);
DSV4_C_API void dsv4_sampler_free(dsv4_sampler* sampler);
/* The prompt's tokens, for repeat_penalty. */
DSV4_C_API dsv4_status dsv4_sampler_prompt(dsv4_sampler* sampler, const int32_t* ids, size_t num_ids);
/* Draws from logits [num_floats = vocab_size]. allowed: NULL, or a bit per token (bit id % 32 of word id / 32).
 * DSV4_TOO_SMALL (token->top): nothing is drawn. */
DSV4_C_API dsv4_status dsv4_sample(dsv4_sampler* sampler, const float* logits, size_t num_floats,
                                   const uint32_t* allowed, dsv4_token* token);

typedef struct dsv4_decode_item {
  size_t size;
  dsv4_session* session;
  dsv4_sampler* sampler;
  int64_t max_tokens;      /* draws; at least 1 */
  const int32_t* stop_ids; /* drawing one of them ends the item */
  size_t num_stop_ids;
  int32_t first;     /* the token that is appended before the first draw */
  int32_t no_drafts; /* 1: no drafts */
} dsv4_decode_item;
/* Every draw, in order within an item; token is valid during the call. Not 0: the item ends. */
typedef int (*dsv4_token_fn)(size_t item, const dsv4_token* token, void* user);
/* Draws and appends tokens until each item has ended. Every draw but the last of each item is appended. */
DSV4_C_API dsv4_status dsv4_run(dsv4_engine* engine, const dsv4_decode_item* items, size_t num_items,
                                dsv4_token_fn on_token, void* user);

/* ---- Snapshots */

DSV4_C_API dsv4_status dsv4_snapshot_take(dsv4_session* session, dsv4_snapshot** snapshot);
DSV4_C_API void dsv4_snapshot_free(dsv4_snapshot* snapshot);
/* The bytes of a file of it, with checksums. */
DSV4_C_API dsv4_status dsv4_snapshot_bytes(const dsv4_snapshot* snapshot, void* bytes, size_t* length);
/* Any bytes are safe: they are checked. */
DSV4_C_API dsv4_status dsv4_snapshot_read(dsv4_engine* engine, const void* bytes, size_t length,
                                          dsv4_snapshot** snapshot);

/* ---- Service: many requests at once, with a prefix cache */

/* event: "warning", "device-failed", "device-restarted". On a thread of the service. */
typedef void (*dsv4_notice_fn)(const char* event, const char* line, void* user);

typedef struct dsv4_service_options {
  size_t size;
  const char* model_dir;   /* for generation_config.json and the chat format; NULL: none */
  int64_t max_running;     /* requests in the batch; 0: 64 */
  int64_t max_waiting;     /* requests in the queue; 0: 256 */
  int64_t prefill_chunk;   /* prompt tokens per step; 0: 512 */
  int64_t kv_budget_bytes; /* of requests and prefix cache; 0: half of the free memory */
  double max_gap_s;        /* target for the time between two tokens; 0: 0.25; below 0: none */
  int32_t no_prefix_cache;
  int32_t no_restart; /* 1: a device that failed is not opened again */
  dsv4_notice_fn on_notice;
  void* user; /* for on_notice */
} dsv4_service_options;

enum { DSV4_RUNNING = 0, DSV4_STOP = 1, DSV4_LENGTH = 2, DSV4_TOOL_CALLS = 3, DSV4_ABORTED = 4, DSV4_FAILED = 5 };

typedef struct dsv4_event {
  size_t size;
  uint64_t request;
  const char* text; /* new text of a completion */
  size_t text_length;
  const char* deltas_json; /* new pieces of a chat, [{"type", "index", "text"}]; "[]": none. The types are reasoning,
                               content, call (text: the name), arguments, call_end */
  size_t deltas_length;
  const dsv4_token* tokens; /* new tokens */
  size_t num_tokens;
  int32_t finish;           /* DSV4_RUNNING, or in the last event of a request why it ended */
  dsv4_status error;        /* with DSV4_ABORTED and DSV4_FAILED */
  const char* error_line;   /* "": none */
  const char* matched_stop; /* the stop string that ended it; "": none */
  int64_t prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens;
} dsv4_event;
/* On the service's thread, one call at a time; everything is valid during the call. Not 0: cancels the request, whose
 * last event still comes. */
typedef int (*dsv4_event_fn)(const dsv4_event* event, void* user);

DSV4_C_API dsv4_status dsv4_service_new(dsv4_engine* engine, const dsv4_tokenizer* tokenizer,
                                        const dsv4_service_options* options, dsv4_service** service);
/* Ends all requests first: each gets its last event. Not in a callback. */
DSV4_C_API void dsv4_service_free(dsv4_service* service);
/* request_json: the body of POST /v1/chat/completions or /v1/completions. Exactly one last event comes for every
 * request that is accepted; events may come before the call returns. */
DSV4_C_API dsv4_status dsv4_submit(dsv4_service* service, const char* request_json, size_t length,
                                   dsv4_event_fn on_event, void* user, uint64_t* request);
DSV4_C_API dsv4_status dsv4_cancel(dsv4_service* service, uint64_t request); /* DSV4_NOT_FOUND: it has ended */
DSV4_C_API dsv4_status dsv4_pause(dsv4_service* service, uint64_t request, int paused);
/* {"open", "running", "waiting", "kv_used_bytes", "prompt_tokens", ...} */
DSV4_C_API dsv4_status dsv4_service_stats_json(const dsv4_service* service, char* json, size_t* length);
/* Refuses further requests and waits for the open ones, for at most timeout_s (below 0: as long as it takes).
 * DSV4_CANCELLED: some are still open. */
DSV4_C_API dsv4_status dsv4_drain(dsv4_service* service, double timeout_s);

/* ---- HTTP server */

/* options_json: {"host", "port", "model_dir", "model_name", "api_keys": [...], "max_running", "max_waiting",
 * "kv_budget_bytes", "prefix_cache", "default_thinking", "log": true}, all optional; port 0: any free one. Without
 * "log" nothing is printed. *port: the one that it listens on. */
DSV4_C_API dsv4_status dsv4_server_start(dsv4_engine* engine, const dsv4_tokenizer* tokenizer, const char* options_json,
                                         size_t length, int* port, dsv4_server** server);
/* Finishes the running requests, for at most drain_s seconds, then ends the others, and frees the server. */
DSV4_C_API void dsv4_server_stop(dsv4_server* server, double drain_s);

#ifdef __cplusplus
}
#endif
