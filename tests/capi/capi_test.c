/* A C17 program that uses every function of dsv4.h: with NULL, with buffers that are too small, and for real work. */
#define _POSIX_C_SOURCE 200809L
#include "dsv4.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int num_failed = 0;

#define EXPECT(condition)                                                                                \
  do {                                                                                                   \
    if (!(condition)) {                                                                                  \
      ++num_failed;                                                                                      \
      fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #condition, dsv4_last_error()); \
    }                                                                                                    \
  } while (0)
#define OK(call) EXPECT((call) == DSV4_OK)
#define INVALID(call) EXPECT((call) == DSV4_INVALID_ARGUMENT && dsv4_last_error()[0] != 0)
#define NEEDS(call, length) EXPECT((call) == DSV4_TOO_SMALL && (length) > 0)

static const char* model_dir;

static void sleep_ms(long ms) {
  const struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&time, NULL);
}

/* ---- Text */

static void test_library(void) {
  EXPECT(strchr(dsv4_version(), '.') != NULL);
  EXPECT(strstr(dsv4_build_info_json(), "\"compiler\"") != NULL);
  INVALID(dsv4_tokenizer_load(NULL, NULL));
  EXPECT(strstr(dsv4_last_error(), "tokenizer") != NULL);
}

static void test_text(const dsv4_tokenizer* tokenizer) {
  const char text[] = "In the beginning";
  size_t n = 0;
  NEEDS(dsv4_encode(tokenizer, text, strlen(text), 0, NULL, &n), n);
  int32_t ids[64];
  const size_t needed = n;
  n = needed - 1;
  NEEDS(dsv4_encode(tokenizer, text, strlen(text), 0, ids, &n), n);
  EXPECT(n == needed);
  n = 64;
  OK(dsv4_encode(tokenizer, text, strlen(text), DSV4_ENCODE_PLAIN, ids, &n));
  EXPECT(n == needed);
  INVALID(dsv4_encode(NULL, text, 1, 0, ids, &n));
  INVALID(dsv4_encode(tokenizer, NULL, 1, 0, ids, &n));
  INVALID(dsv4_encode(tokenizer, text, 1, 0, ids, NULL));

  char back[64];
  size_t length = 3;
  NEEDS(dsv4_decode(tokenizer, ids, n, 0, back, &length), length);
  EXPECT(length == strlen(text));
  length = sizeof back;
  OK(dsv4_decode(tokenizer, ids, n, DSV4_DECODE_NO_SPECIAL, back, &length));
  EXPECT(length == strlen(text) && memcmp(back, text, length) == 0);
  INVALID(dsv4_decode(NULL, ids, n, 0, back, &length));
  INVALID(dsv4_decode(tokenizer, NULL, n, 0, back, &length));
  ids[40] = -1;
  INVALID(dsv4_decode(tokenizer, ids + 40, 1, 0, back, &length));

  const char* bytes = NULL;
  OK(dsv4_token_bytes(tokenizer, ids[0], &bytes, &length));
  EXPECT(length > 0 && memcmp(bytes, text, length) == 0);
  INVALID(dsv4_token_bytes(tokenizer, -1, &bytes, &length));
  INVALID(dsv4_token_bytes(tokenizer, ids[0], NULL, &length));
  INVALID(dsv4_token_bytes(NULL, ids[0], &bytes, &length));
  EXPECT(dsv4_vocab_size(tokenizer) > 1000 && dsv4_vocab_size(NULL) == -1);
  EXPECT(dsv4_bos(tokenizer) >= 0 && dsv4_bos(NULL) == -1);
  EXPECT(dsv4_eos(tokenizer) >= 0 && dsv4_eos(NULL) == -1);

  dsv4_decoder* decoder = NULL;
  INVALID(dsv4_decoder_new(NULL, 0, &decoder));
  INVALID(dsv4_decoder_new(tokenizer, 0, NULL));
  OK(dsv4_decoder_new(tokenizer, 0, &decoder));
  char joined[64] = "";
  for (size_t i = 0; i < n; ++i) {
    char piece[64];
    length = 0;
    const dsv4_status status = dsv4_decoder_push(decoder, ids[i], NULL, &length);
    EXPECT(length == 0 ? status == DSV4_OK : status == DSV4_TOO_SMALL);
    if (status == DSV4_OK) continue;
    length = sizeof piece;
    OK(dsv4_decoder_push(decoder, ids[i], piece, &length));
    strncat(joined, piece, length);
  }
  EXPECT(strcmp(joined, text) == 0);
  length = sizeof back;
  OK(dsv4_decoder_finish(decoder, back, &length));
  EXPECT(length == 0);
  INVALID(dsv4_decoder_push(NULL, ids[0], back, &length));
  INVALID(dsv4_decoder_push(decoder, -1, back, &length));
  INVALID(dsv4_decoder_finish(NULL, back, &length));
  INVALID(dsv4_decoder_finish(decoder, back, NULL));
  dsv4_decoder_free(decoder);
  dsv4_decoder_free(NULL);
}

static void test_chat(void) {
  const char request[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}";
  size_t length = 0;
  NEEDS(dsv4_render_chat(request, strlen(request), NULL, NULL, &length), length);
  char* prompt = malloc(length);
  OK(dsv4_render_chat(request, strlen(request), model_dir, prompt, &length));
  EXPECT(length > 2);
  free(prompt);
  INVALID(dsv4_render_chat(NULL, 1, NULL, NULL, &length));
  INVALID(dsv4_render_chat("{", 1, NULL, NULL, &length));
  const char reply[] = "why</think>because";
  char json[256];
  length = 1;
  NEEDS(dsv4_parse_output(reply, strlen(reply), 1, json, &length), length);
  length = sizeof json - 1;
  OK(dsv4_parse_output(reply, strlen(reply), 1, json, &length));
  json[length] = 0;
  EXPECT(strstr(json, "\"reasoning_content\": \"why\"") != NULL && strstr(json, "\"because\"") != NULL);
  INVALID(dsv4_parse_output(NULL, 1, 0, json, &length));
}

/* ---- Engine */

static int num_progress = 0;
static int on_progress(int phase, int64_t done, int64_t total, void* user) {
  ++num_progress;
  return phase == DSV4_LOADING && done > total ? 1 : *(int*)user;
}

static dsv4_engine* load(void) {
  dsv4_engine_options options = {sizeof options, NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, NULL, NULL};
  dsv4_engine* engine = NULL;
  INVALID(dsv4_engine_load(NULL, &engine));
  INVALID(dsv4_engine_load(&options, &engine)); /* no folder */
  options.model_dir = "/nowhere";
  EXPECT(dsv4_engine_load(&options, &engine) == DSV4_NOT_FOUND);
  options.model_dir = model_dir;
  INVALID(dsv4_engine_load(&options, NULL));
  options.speculate = "sometimes";
  INVALID(dsv4_engine_load(&options, &engine));
  options.speculate = "off";
  int stop = 1;
  options.progress = on_progress;
  options.user = &stop;
  EXPECT(dsv4_engine_load(&options, &engine) == DSV4_CANCELLED);
  EXPECT(num_progress > 0);
  options.size = 1;
  INVALID(dsv4_engine_load(&options, &engine));
  options.size = offsetof(dsv4_engine_options, speculate); /* of an older header */
  OK(dsv4_engine_load(&options, &engine));

  options.size = sizeof options;
  stop = 0;
  size_t length = 0;
  NEEDS(dsv4_inspect_json(&options, NULL, &length), length);
  char* json = malloc(length + 1);
  OK(dsv4_inspect_json(&options, json, &length));
  json[length] = 0;
  EXPECT(strstr(json, "\"weight_bytes\"") != NULL);
  free(json);
  INVALID(dsv4_inspect_json(NULL, NULL, &length));

  dsv4_model_info info = {0};
  INVALID(dsv4_engine_info(engine, &info)); /* no size */
  info.size = sizeof info;
  OK(dsv4_engine_info(engine, &info));
  EXPECT(info.vocab_size > 1000 && info.num_layers > 0 && info.num_eos > 0 && info.max_context > 0);
  INVALID(dsv4_engine_info(NULL, &info));
  INVALID(dsv4_engine_info(engine, NULL));
  OK(dsv4_engine_health(engine));
  INVALID(dsv4_engine_health(NULL));
  OK(dsv4_engine_restart(engine));
  INVALID(dsv4_engine_restart(NULL));
  EXPECT(dsv4_engine_kv_bytes(engine) == 0 && dsv4_engine_kv_bytes(NULL) == -1);
  EXPECT(dsv4_engine_free_bytes(engine) > 0 && dsv4_engine_free_bytes(NULL) == -1);
  return engine;
}

static int64_t vocab_of(const dsv4_engine* engine) {
  dsv4_model_info info = {.size = sizeof info};
  OK(dsv4_engine_info(engine, &info));
  return info.vocab_size;
}

static int32_t likeliest(const float* logits, int64_t vocab) {
  int32_t best = 0;
  for (int32_t i = 1; i < vocab; ++i) best = logits[i] > logits[best] ? i : best;
  return best;
}

static int collect(size_t item, const dsv4_token* token, void* user) {
  int32_t* drawn = user;
  EXPECT(item == 0 && token->size == sizeof *token);
  drawn[++drawn[0]] = token->id;
  return 0;
}

/* Greedy, by dsv4_append, by dsv4_step and dsv4_sample, and by dsv4_run: the same tokens. */
static void test_generation(dsv4_engine* engine, const dsv4_tokenizer* tokenizer) {
  enum { kTokens = 12 };
  const int64_t vocab = vocab_of(engine);
  const size_t v = (size_t)vocab;
  int32_t prompt[16];
  size_t n = 16;
  OK(dsv4_encode(tokenizer, "In the beginning", 16, 0, prompt, &n));
  float* logits = malloc(2 * v * sizeof *logits);
  int32_t by_append[kTokens], by_step[kTokens], by_run[kTokens + 1] = {0};

  dsv4_session *a = NULL, *b = NULL;
  INVALID(dsv4_session_new(NULL, &a));
  INVALID(dsv4_session_new(engine, NULL));
  OK(dsv4_session_new(engine, &a));
  INVALID(dsv4_append(NULL, prompt, n, DSV4_ROWS_LAST, logits, v));
  INVALID(dsv4_append(a, NULL, n, DSV4_ROWS_LAST, logits, v));
  INVALID(dsv4_append(a, prompt, n, 7, logits, v));
  EXPECT(dsv4_append(a, prompt, n, DSV4_ROWS_LAST, logits, v - 1) == DSV4_TOO_SMALL);
  EXPECT(dsv4_append(a, prompt, n, DSV4_ROWS_LAST, NULL, v) == DSV4_TOO_SMALL);
  EXPECT(dsv4_append(a, prompt, n, DSV4_ROWS_ALL, logits, v) == DSV4_TOO_SMALL);
  EXPECT(dsv4_session_length(a) == 0 && dsv4_session_length(NULL) == -1);
  OK(dsv4_append(a, prompt, n, DSV4_ROWS_LAST, logits, 2 * v));
  for (int i = 0; i < kTokens; ++i) {
    by_append[i] = likeliest(logits, vocab);
    OK(dsv4_append(a, &by_append[i], 1, DSV4_ROWS_LAST, logits, v));
  }
  EXPECT(dsv4_session_length(a) == (int64_t)n + kTokens);
  int32_t ids[64];
  size_t num_ids = 2;
  NEEDS(dsv4_session_tokens(a, ids, &num_ids), num_ids);
  num_ids = 64;
  OK(dsv4_session_tokens(a, ids, &num_ids));
  EXPECT(num_ids == n + kTokens && ids[n] == by_append[0]);
  INVALID(dsv4_session_tokens(NULL, ids, &num_ids));
  OK(dsv4_truncate(a, (int64_t)n + kTokens - 3));
  INVALID(dsv4_truncate(a, 1000));
  INVALID(dsv4_truncate(NULL, 0));
  OK(dsv4_truncate(a, 0));

  OK(dsv4_session_new(engine, &b));
  const dsv4_sampling greedy = {.size = sizeof greedy, .logprobs = 1, .num_top = 2};
  dsv4_sampler* sampler = NULL;
  INVALID(dsv4_sampler_new(NULL, vocab, &sampler));
  INVALID(dsv4_sampler_new(&greedy, 0, &sampler));
  INVALID(dsv4_sampler_new(&greedy, vocab, NULL));
  const dsv4_bias bias = {-5, 1.0f};
  const dsv4_sampling bad = {.size = sizeof bad, .biases = &bias, .num_biases = 1};
  INVALID(dsv4_sampler_new(&bad, vocab, &sampler));
  OK(dsv4_sampler_new(&greedy, vocab, &sampler));
  OK(dsv4_sampler_prompt(sampler, prompt, n));
  INVALID(dsv4_sampler_prompt(NULL, prompt, n));
  dsv4_step_item items[2] = {
      {.size = sizeof items[0], .session = a, .ids = prompt, .num_ids = n, .prompt_tokens = (int64_t)n},
      {.size = sizeof items[1], .session = b, .ids = prompt, .num_ids = n, .prompt_tokens = (int64_t)n}};
  items[0].rows = items[1].rows = DSV4_ROWS_LAST;
  items[0].logits = logits;
  items[0].num_floats = v;
  INVALID(dsv4_step(NULL, items, 2));
  INVALID(dsv4_step(engine, NULL, 2));
  EXPECT(dsv4_step(engine, items, 2) == DSV4_TOO_SMALL);
  items[1].logits = logits + v;
  items[1].num_floats = v;
  items[1].session = a;
  INVALID(dsv4_step(engine, items, 2)); /* twice the same */
  items[1].session = b;
  OK(dsv4_step(engine, items, 2));
  EXPECT(memcmp(logits, logits + v, v * sizeof *logits) == 0);
  dsv4_logprob top[2];
  dsv4_token token = {.size = sizeof token, .top = top, .num_top = 1};
  INVALID(dsv4_sample(NULL, logits, v, NULL, &token));
  INVALID(dsv4_sample(sampler, NULL, v, NULL, &token));
  NEEDS(dsv4_sample(sampler, logits, v, NULL, &token), token.num_top);
  EXPECT(token.num_top == 2);
  for (int i = 0; i < kTokens; ++i) {
    token.num_top = 2;
    OK(dsv4_sample(sampler, logits, v, NULL, &token));
    by_step[i] = token.id;
    EXPECT(token.num_top == 2 && top[0].id == token.id && top[0].logprob == token.logprob);
    OK(dsv4_append(a, &by_step[i], 1, DSV4_ROWS_LAST, logits, v));
  }
  INVALID(dsv4_sample(sampler, logits, v - 1, NULL, &token));
  dsv4_sampler_free(sampler);
  dsv4_sampler_free(NULL);

  const dsv4_sampling plain = {.size = sizeof plain};
  OK(dsv4_sampler_new(&plain, vocab, &sampler));
  OK(dsv4_truncate(b, 0));
  OK(dsv4_append(b, prompt, n - 1, DSV4_ROWS_NONE, NULL, 0));
  dsv4_decode_item item = {.size = sizeof item, .session = b, .sampler = sampler, .max_tokens = kTokens,
                           .first = prompt[n - 1]};
  INVALID(dsv4_run(NULL, &item, 1, collect, by_run));
  INVALID(dsv4_run(engine, NULL, 1, collect, by_run));
  item.sampler = NULL;
  INVALID(dsv4_run(engine, &item, 1, collect, by_run));
  item.sampler = sampler;
  OK(dsv4_run(engine, &item, 1, collect, by_run));
  EXPECT(by_run[0] == kTokens);
  EXPECT(memcmp(by_append, by_step, sizeof by_step) == 0);
  EXPECT(memcmp(by_append, by_run + 1, sizeof by_step) == 0);

  OK(dsv4_engine_stop(engine, 1));
  EXPECT(dsv4_append(b, prompt, 1, DSV4_ROWS_NONE, NULL, 0) == DSV4_CANCELLED);
  OK(dsv4_engine_stop(engine, 0));
  OK(dsv4_append(b, prompt, 1, DSV4_ROWS_NONE, NULL, 0));
  INVALID(dsv4_engine_stop(NULL, 1));
  dsv4_sampler_free(sampler);
  dsv4_session_free(a);
  dsv4_session_free(b);
  dsv4_session_free(NULL);
  free(logits);
}

static void test_snapshots(dsv4_engine* engine) {
  const size_t v = (size_t)vocab_of(engine);
  float *want = malloc(v * sizeof *want), *got = malloc(v * sizeof *got);
  int32_t prompt[40];
  for (int i = 0; i < 40; ++i) prompt[i] = 200 + i;
  const int32_t next = 300;
  dsv4_session *session = NULL, *again = NULL;
  dsv4_snapshot *snapshot = NULL, *read = NULL;
  OK(dsv4_session_new(engine, &session));
  INVALID(dsv4_snapshot_take(session, &snapshot)); /* empty */
  OK(dsv4_append(session, prompt, 40, DSV4_ROWS_NONE, NULL, 0));
  INVALID(dsv4_snapshot_take(NULL, &snapshot));
  INVALID(dsv4_snapshot_take(session, NULL));
  OK(dsv4_snapshot_take(session, &snapshot));
  OK(dsv4_append(session, &next, 1, DSV4_ROWS_LAST, want, v));

  size_t length = 10;
  NEEDS(dsv4_snapshot_bytes(snapshot, NULL, &length), length);
  char* bytes = malloc(length);
  OK(dsv4_snapshot_bytes(snapshot, bytes, &length));
  INVALID(dsv4_snapshot_bytes(NULL, bytes, &length));
  INVALID(dsv4_snapshot_bytes(snapshot, bytes, NULL));
  EXPECT(dsv4_snapshot_read(engine, bytes, length - 1, &read) == DSV4_DATA_LOSS);
  bytes[length / 2] ^= 1;
  EXPECT(dsv4_snapshot_read(engine, bytes, length, &read) == DSV4_DATA_LOSS);
  bytes[length / 2] ^= 1;
  INVALID(dsv4_snapshot_read(engine, NULL, 5, &read));
  INVALID(dsv4_snapshot_read(NULL, bytes, length, &read));
  INVALID(dsv4_snapshot_read(engine, bytes, length, NULL));
  OK(dsv4_snapshot_read(engine, bytes, length, &read));
  free(bytes);
  INVALID(dsv4_session_from(engine, NULL, &again));
  INVALID(dsv4_session_from(NULL, read, &again));
  INVALID(dsv4_session_from(engine, read, NULL));
  OK(dsv4_session_from(engine, read, &again));
  OK(dsv4_append(again, &next, 1, DSV4_ROWS_LAST, got, v));
  EXPECT(memcmp(want, got, v * sizeof *want) == 0);
  dsv4_session_free(session);
  dsv4_session_free(again);
  dsv4_snapshot_free(snapshot);
  dsv4_snapshot_free(read);
  dsv4_snapshot_free(NULL);
  EXPECT(dsv4_engine_kv_bytes(engine) == 0);
  free(want);
  free(got);
}

/* ---- Service */

struct mail {
  pthread_mutex_t mutex;
  char text[4096];
  int num_last, finish, stop_at_once;
  dsv4_status error;
  int64_t completion;
};

static int on_event(const dsv4_event* event, void* user) {
  struct mail* mail = user;
  pthread_mutex_lock(&mail->mutex);
  strncat(mail->text, event->text, event->text_length);
  if (event->deltas_length > 2) strncat(mail->text, event->deltas_json, event->deltas_length);
  if (event->finish != DSV4_RUNNING) {
    ++mail->num_last;
    mail->finish = event->finish;
    mail->error = event->error;
    mail->completion = event->completion_tokens;
  }
  pthread_mutex_unlock(&mail->mutex);
  return mail->stop_at_once;
}

static void test_service(dsv4_engine* engine, const dsv4_tokenizer* tokenizer) {
  const dsv4_service_options options = {.size = sizeof options, .model_dir = model_dir};
  dsv4_service* service = NULL;
  INVALID(dsv4_service_new(NULL, tokenizer, &options, &service));
  INVALID(dsv4_service_new(engine, NULL, &options, &service));
  INVALID(dsv4_service_new(engine, tokenizer, NULL, &service));
  INVALID(dsv4_service_new(engine, tokenizer, &options, NULL));
  OK(dsv4_service_new(engine, tokenizer, &options, &service));
  static struct mail text = {.mutex = PTHREAD_MUTEX_INITIALIZER}, chat = {.mutex = PTHREAD_MUTEX_INITIALIZER},
                     cancelled = {.mutex = PTHREAD_MUTEX_INITIALIZER}, stopped = {.mutex = PTHREAD_MUTEX_INITIALIZER};
  stopped.stop_at_once = 1;
  const char body[] = "{\"prompt\": \"In the beginning\", \"max_tokens\": 8, \"temperature\": 0}";
  const char talk[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"max_tokens\": 8}";
  const char endless[] = "{\"prompt\": \"In the beginning\", \"max_tokens\": 30000, \"ignore_eos\": true}";
  uint64_t request = 0, other = 0;
  INVALID(dsv4_submit(NULL, body, strlen(body), on_event, &text, &request));
  INVALID(dsv4_submit(service, NULL, 5, on_event, &text, &request));
  INVALID(dsv4_submit(service, body, strlen(body), NULL, &text, &request));
  INVALID(dsv4_submit(service, body, strlen(body), on_event, &text, NULL));
  INVALID(dsv4_submit(service, body, strlen(body) - 1, on_event, &text, &request)); /* no JSON */
  OK(dsv4_submit(service, body, strlen(body), on_event, &text, &request));
  OK(dsv4_submit(service, talk, strlen(talk), on_event, &chat, &request));
  OK(dsv4_submit(service, endless, strlen(endless), on_event, &stopped, &other));
  OK(dsv4_submit(service, endless, strlen(endless), on_event, &cancelled, &request));
  OK(dsv4_pause(service, request, 1));
  OK(dsv4_pause(service, request, 0));
  INVALID(dsv4_pause(NULL, request, 1));
  OK(dsv4_cancel(service, request));
  INVALID(dsv4_cancel(NULL, request));
  size_t length = 2;
  NEEDS(dsv4_service_stats_json(service, NULL, &length), length);
  char json[1024];
  length = sizeof json - 1;
  OK(dsv4_service_stats_json(service, json, &length));
  json[length] = 0;
  EXPECT(strstr(json, "\"open\"") != NULL);
  INVALID(dsv4_service_stats_json(NULL, json, &length));
  OK(dsv4_drain(service, 60));
  INVALID(dsv4_drain(NULL, 0));
  EXPECT(dsv4_cancel(service, request) == DSV4_NOT_FOUND);
  EXPECT(text.num_last == 1 && text.finish == DSV4_LENGTH && text.completion == 8 && strlen(text.text) > 8);
  EXPECT(chat.num_last == 1 && chat.finish != DSV4_FAILED && strstr(chat.text, "\"type\"") != NULL);
  EXPECT(cancelled.num_last == 1 && cancelled.finish == DSV4_ABORTED && cancelled.error == DSV4_CANCELLED);
  EXPECT(stopped.num_last == 1 && stopped.finish == DSV4_ABORTED);
  EXPECT(dsv4_submit(service, body, strlen(body), on_event, &text, &request) == DSV4_RESOURCE_EXHAUSTED);
  dsv4_service_free(service);
  dsv4_service_free(NULL);

  static struct mail open = {.mutex = PTHREAD_MUTEX_INITIALIZER};
  OK(dsv4_service_new(engine, tokenizer, &options, &service));
  OK(dsv4_submit(service, endless, strlen(endless), on_event, &open, &request));
  EXPECT(dsv4_drain(service, 0.05) == DSV4_CANCELLED);
  dsv4_service_free(service);
  EXPECT(open.num_last == 1 && open.finish == DSV4_FAILED);
}

/* ---- Server */

static int asks(int port, const char* path) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in address;
  memset(&address, 0, sizeof address);
  address.sin_family = AF_INET;
  address.sin_port = htons((uint16_t)port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  char request[256], reply[16] = "";
  const int length = snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
  int status = 0;
  if (connect(fd, (const struct sockaddr*)&address, sizeof address) == 0 &&
      write(fd, request, (size_t)length) == length && read(fd, reply, sizeof reply - 1) > 12) {
    status = atoi(reply + 9);
  }
  close(fd);
  return status;
}

static void on_sigterm(int number) { (void)number; }

static void test_server(dsv4_engine* engine, const dsv4_tokenizer* tokenizer) {
  struct sigaction own, found;
  memset(&own, 0, sizeof own);
  own.sa_handler = on_sigterm;
  sigaction(SIGTERM, &own, NULL);
  int port = 0;
  dsv4_server* server = NULL;
  const char options[] = "{\"port\": 0, \"model_name\": \"nano\", \"max_running\": 4}";
  INVALID(dsv4_server_start(NULL, tokenizer, options, strlen(options), &port, &server));
  INVALID(dsv4_server_start(engine, NULL, options, strlen(options), &port, &server));
  INVALID(dsv4_server_start(engine, tokenizer, NULL, 3, &port, &server));
  INVALID(dsv4_server_start(engine, tokenizer, "{\"prot\": 1}", 11, &port, &server));
  INVALID(dsv4_server_start(engine, tokenizer, "{\"port\": true}", 14, &port, &server));
  INVALID(dsv4_server_start(engine, tokenizer, options, strlen(options), NULL, &server));
  INVALID(dsv4_server_start(engine, tokenizer, options, strlen(options), &port, NULL));
  for (int i = 0; i < 3; ++i) {
    OK(dsv4_server_start(engine, tokenizer, options, strlen(options), &port, &server));
    EXPECT(port > 0 && asks(port, "/health") == 200 && asks(port, "/nothing") == 404);
    dsv4_server_stop(server, 5);
    EXPECT(asks(port, "/health") == 0);
  }
  dsv4_server_stop(NULL, 0);
  sigaction(SIGTERM, NULL, &found);
  EXPECT(found.sa_handler == on_sigterm);
}

/* ---- A forked child */

static void test_fork(dsv4_engine* engine, dsv4_tokenizer* tokenizer) {
  dsv4_session* session = NULL;
  OK(dsv4_session_new(engine, &session));
  const pid_t child = fork();
  if (child == 0) {
    num_failed = 0;
    const int32_t id = 300;
    size_t n = 0;
    EXPECT(dsv4_append(session, &id, 1, DSV4_ROWS_NONE, NULL, 0) == DSV4_WRONG_PROCESS);
    EXPECT(dsv4_engine_health(engine) == DSV4_WRONG_PROCESS && strstr(dsv4_last_error(), "fork") != NULL);
    EXPECT(dsv4_encode(tokenizer, "a", 1, 0, NULL, &n) == DSV4_WRONG_PROCESS);
    EXPECT(dsv4_session_length(session) == -1 && dsv4_vocab_size(tokenizer) == -1);
    dsv4_session_free(session);
    dsv4_engine_free(engine);
    dsv4_tokenizer_free(tokenizer);
    dsv4_tokenizer* own = NULL;
    OK(dsv4_tokenizer_load(model_dir, &own));
    dsv4_tokenizer_free(own);
    _exit(num_failed == 0 ? 0 : 1);
  }
  int status = 0;
  EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  const int32_t id = 300;
  OK(dsv4_append(session, &id, 1, DSV4_ROWS_NONE, NULL, 0));
  dsv4_session_free(session);
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  model_dir = argv[1];
  test_library();
  dsv4_tokenizer* tokenizer = NULL;
  EXPECT(dsv4_tokenizer_load("/nowhere", &tokenizer) == DSV4_NOT_FOUND);
  OK(dsv4_tokenizer_load(model_dir, &tokenizer));
  dsv4_engine* engine = load();
  if (tokenizer == NULL || engine == NULL) return 1;
  test_text(tokenizer);
  test_chat();
  test_generation(engine, tokenizer);
  test_snapshots(engine);
  test_fork(engine, tokenizer);
  test_service(engine, tokenizer);
  test_server(engine, tokenizer);
  dsv4_session* last = NULL;
  OK(dsv4_session_new(engine, &last));
  dsv4_engine_free(engine); /* the session keeps it */
  EXPECT(dsv4_session_length(last) == 0);
  dsv4_session_free(last);
  dsv4_engine_free(NULL);
  dsv4_tokenizer_free(tokenizer);
  dsv4_tokenizer_free(NULL);
  sleep_ms(1);
  if (num_failed > 0) fprintf(stderr, "%d failed\n", num_failed);
  return num_failed == 0 ? 0 : 1;
}
