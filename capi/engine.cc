// Engines, sessions, samplers and snapshots.
#include <cmath>
#include <nlohmann/json.hpp>

#include "dsv4/inspect.h"
#include "dsv4/speculation.h"
#include "handles.h"

using namespace dsv4;        // NOLINT: these functions are the C form of that namespace
using namespace dsv4::capi;  // NOLINT

namespace dsv4::capi {

dsv4_token TokenOf(const SampledToken& token, std::span<dsv4_logprob> top) {
  for (size_t i = 0; i < top.size(); ++i) top[i] = {token.top[i].id, token.top[i].logprob};
  return {.size = sizeof(dsv4_token),
          .id = token.id,
          .logprob = token.logprob,
          .drafted = token.drafted ? 1 : 0,
          .reserved = 0,
          .top = top.data(),
          .num_top = top.size()};
}

}  // namespace dsv4::capi

namespace {

using Json = nlohmann::ordered_json;

EngineOptions OptionsOf(const dsv4_engine_options& o) {
  EngineOptions options{.model_dir = PathIn(o.model_dir, "model_dir")};
  if (o.device != nullptr) options.device = o.device;
  if (o.speculate != nullptr) {
    const auto* const at = std::find(std::begin(kSpeculateNames), std::end(kSpeculateNames), o.speculate);
    if (at == std::end(kSpeculateNames))
      Refuse("speculate is '" + std::string(o.speculate) + "'; expected off, lookup, mtp, dspark or auto");
    options.drafts.speculate = static_cast<Speculate>(at - std::begin(kSpeculateNames));
  }
  options.drafts.tokens = o.draft_tokens;
  options.prefill_chunk = o.prefill_chunk;
  options.max_context = o.max_context;
  options.offload.gpu_memory = o.gpu_memory;
  options.offload.host_memory = o.host_memory;
  options.num_threads = o.num_threads;
  options.batch_invariant = o.batch_invariant != 0;
  if (o.progress != nullptr) {
    options.progress = [call = o.progress, user = o.user](const Progress& p) {
      return call(p.phase == Progress::Phase::kPrefill ? DSV4_PREFILL : DSV4_LOADING, p.done, p.total, user) == 0;
    };
  }
  return options;
}

Json ToJson(const ModelDescription& d) {
  Json formats = Json::array();
  for (const FormatSummary& f : d.formats)
    formats.push_back(
        {{"format", f.format}, {"tensors", f.num_tensors}, {"parameters", f.num_parameters}, {"bytes", f.bytes}});
  Json config = Json::object();
  for (const auto& [name, value] : d.config) config[name] = value;
  const MemoryPlan& p = d.plan;
  return {{"config", std::move(config)},
          {"formats", std::move(formats)},
          {"files", d.files},
          {"vocab_size", d.info.vocab_size},
          {"layers", d.info.num_layers},
          {"max_context", d.info.max_context},
          {"weight_bytes", p.weight_bytes},
          {"kv_fixed_bytes", p.kv_fixed_bytes},
          {"kv_bytes_per_1k_tokens", p.kv_bytes_per_1k_tokens},
          {"activation_bytes", p.activation_bytes},
          {"scratch_bytes", p.scratch_bytes},
          {"available_bytes", p.available_bytes},
          {"max_context_that_fits", p.max_context_that_fits},
          {"device", p.device}};
}

SamplingParams SamplingOf(const dsv4_sampling& s) {
  SamplingParams params{.temperature = s.temperature, .top_k = s.top_k, .min_p = s.min_p};
  if (s.top_p != 0) params.top_p = s.top_p;
  if (s.repeat_penalty != 0) params.repeat_penalty = s.repeat_penalty;
  params.presence_penalty = s.presence_penalty;
  params.frequency_penalty = s.frequency_penalty;
  if (s.has_seed != 0) params.seed = s.seed;
  if (s.logprobs != 0) params.top_logprobs = s.num_top;
  for (const dsv4_bias& bias : In(s.biases, s.num_biases, "biases")) params.logit_bias.emplace_back(bias.id, bias.bias);
  return params;
}

LogitRows RowsOf(dsv4_rows rows) {
  if (rows < DSV4_ROWS_NONE || rows > DSV4_ROWS_ALL)
    Refuse("rows is " + std::to_string(rows) + "; expected DSV4_ROWS_NONE, DSV4_ROWS_LAST or DSV4_ROWS_ALL");
  return static_cast<LogitRows>(rows);
}

// The part of the caller's memory that the rows take.
std::span<float> RoomFor(const Engine& engine, dsv4_rows rows, size_t num_ids, float* logits, size_t num_floats) {
  const size_t count = rows == DSV4_ROWS_ALL ? num_ids : rows == DSV4_ROWS_LAST ? 1 : 0;
  const auto vocab = static_cast<size_t>(engine.info().vocab_size);
  if (count > num_floats / vocab || (count > 0 && logits == nullptr)) {
    throw Failure{DSV4_TOO_SMALL, "there is room for " + std::to_string(logits == nullptr ? 0 : num_floats) +
                                      " floats of logits, and " + std::to_string(count) + " rows of " +
                                      std::to_string(vocab) + " are needed"};
  }
  return {logits, count * vocab};
}

}  // namespace

static_assert(static_cast<int>(LogitRows::kLast) == DSV4_ROWS_LAST);
static_assert(static_cast<int>(LogitRows::kAll) == DSV4_ROWS_ALL);

extern "C" {

dsv4_status dsv4_engine_load(const dsv4_engine_options* options, dsv4_engine** engine) {
  return Guard([&]() -> Status {
    Out(engine, "engine");
    DSV4_ASSIGN_OR_RETURN(std::unique_ptr<Engine> loaded, Engine::Load(OptionsOf(Read(options, "options"))));
    *engine = new dsv4_engine(std::move(loaded));
    return {};
  });
}

void dsv4_engine_free(dsv4_engine* engine) { Free(engine); }

dsv4_status dsv4_engine_info(const dsv4_engine* engine, dsv4_model_info* info) {
  return Guard([&]() -> Status {
    const ModelInfo& m = Use(engine, "engine").engine->info();
    dsv4_model_info out{.size = sizeof(out),
                        .vocab_size = m.vocab_size,
                        .num_layers = m.num_layers,
                        .hidden_size = m.hidden_size,
                        .max_context = m.max_context,
                        .weight_bytes = m.weight_bytes,
                        .kv_fixed_bytes = m.kv_fixed_bytes,
                        .kv_bytes_per_token = m.kv_bytes_per_token,
                        .bos = m.bos_token_id,
                        .num_eos = static_cast<int32_t>(std::min(m.eos_token_ids.size(), std::size(out.eos))),
                        .eos = {}};
    std::copy_n(m.eos_token_ids.begin(), out.num_eos, out.eos);
    Write(out, info, "info");
    return {};
  });
}

dsv4_status dsv4_engine_health(const dsv4_engine* engine) {
  return Guard([&] { return Use(engine, "engine").engine->health(); });
}
dsv4_status dsv4_engine_restart(dsv4_engine* engine) {
  return Guard([&] { return Use(engine, "engine").engine->Restart(); });
}
int64_t dsv4_engine_kv_bytes(const dsv4_engine* engine) { return IsUsable(engine) ? engine->engine->kv_bytes() : -1; }
int64_t dsv4_engine_free_bytes(const dsv4_engine* engine) {
  return IsUsable(engine) ? engine->engine->free_bytes() : -1;
}
dsv4_status dsv4_engine_stop(dsv4_engine* engine, int stopped) {
  return Guard([&]() -> Status {
    Use(engine, "engine").engine->SetStopped(stopped != 0);
    return {};
  });
}

dsv4_status dsv4_inspect_json(const dsv4_engine_options* options, char* json, size_t* length) {
  return Guard([&]() -> Status {
    DSV4_ASSIGN_OR_RETURN(const ModelDescription description, Inspect(OptionsOf(Read(options, "options"))));
    FillText(ToJson(description).dump(-1, ' ', false, Json::error_handler_t::replace), json, length);
    return {};
  });
}

dsv4_status dsv4_session_new(dsv4_engine* engine, dsv4_session** session) {
  return Guard([&]() -> Status {
    const dsv4_engine& e = Use(engine, "engine");
    Out(session, "session");
    DSV4_ASSIGN_OR_RETURN(std::unique_ptr<Session> made, e.engine->NewSession());
    *session = new dsv4_session(e.engine, std::move(made));
    return {};
  });
}

dsv4_status dsv4_session_from(dsv4_engine* engine, const dsv4_snapshot* snapshot, dsv4_session** session) {
  return Guard([&]() -> Status {
    const dsv4_engine& e = Use(engine, "engine");
    const dsv4_snapshot& s = Use(snapshot, "snapshot");
    Out(session, "session");
    DSV4_ASSIGN_OR_RETURN(std::unique_ptr<Session> made, e.engine->NewSession(*s.snapshot));
    *session = new dsv4_session(e.engine, std::move(made));
    return {};
  });
}

void dsv4_session_free(dsv4_session* session) { Free(session); }

int64_t dsv4_session_length(const dsv4_session* session) {
  return IsUsable(session) ? static_cast<int64_t>(session->session->tokens().size()) : -1;
}

dsv4_status dsv4_session_tokens(const dsv4_session* session, int32_t* ids, size_t* num_ids) {
  return Guard([&]() -> Status {
    Fill(std::span<const TokenId>(Use(session, "session").session->tokens()), ids, num_ids);
    return {};
  });
}

dsv4_status dsv4_truncate(dsv4_session* session, int64_t length) {
  return Guard([&] { return Use(session, "session").session->Truncate(length); });
}

dsv4_status dsv4_append(dsv4_session* session, const int32_t* ids, size_t num_ids, dsv4_rows rows, float* logits,
                        size_t num_floats) {
  return Guard([&] {
    const dsv4_session& s = Use(session, "session");
    const LogitRows wanted = RowsOf(rows);
    return s.session->Append(In(ids, num_ids, "ids"), wanted, RoomFor(*s.engine, rows, num_ids, logits, num_floats));
  });
}

dsv4_status dsv4_step(dsv4_engine* engine, const dsv4_step_item* items, size_t num_items) {
  return Guard([&]() -> Status {
    Engine& e = *Use(engine, "engine").engine;
    In(items, num_items, "items");
    std::vector<StepItem> step;
    for (size_t i = 0; i < num_items; ++i) {
      (void)Read(items, "items");
      const dsv4_step_item item = Read(At(items, i), "items");
      const LogitRows rows = RowsOf(item.rows);
      step.push_back({.session = Use(item.session, "items->session").session.get(),
                      .tokens = In(item.ids, item.num_ids, "items->ids"),
                      .rows = rows,
                      .logits_into = RoomFor(e, item.rows, item.num_ids, item.logits, item.num_floats),
                      .prompt_tokens = item.prompt_tokens});
    }
    return e.Step(step);
  });
}

dsv4_status dsv4_sampler_new(const dsv4_sampling* sampling, int64_t vocab_size, dsv4_sampler** sampler) {
  return Guard([&]() -> Status {
    Out(sampler, "sampler");
    if (vocab_size < 1 || vocab_size > (int64_t{1} << 30)) Refuse("vocab_size is " + std::to_string(vocab_size));
    const SamplingParams params = SamplingOf(Read(sampling, "sampling"));
    DSV4_ASSIGN_OR_RETURN(std::unique_ptr<Sampler> made, Sampler::Create(params, vocab_size));
    *sampler = new dsv4_sampler(std::move(made), vocab_size, static_cast<size_t>(std::max(params.top_logprobs, 0)));
    return {};
  });
}

void dsv4_sampler_free(dsv4_sampler* sampler) { Free(sampler); }

dsv4_status dsv4_sampler_prompt(dsv4_sampler* sampler, const int32_t* ids, size_t num_ids) {
  return Guard([&]() -> Status {
    Use(sampler, "sampler").sampler->AddPrompt(In(ids, num_ids, "ids"));
    return {};
  });
}

dsv4_status dsv4_sample(dsv4_sampler* sampler, const float* logits, size_t num_floats, const uint32_t* allowed,
                        dsv4_token* token) {
  return Guard([&]() -> Status {
    const dsv4_sampler& s = Use(sampler, "sampler");
    const dsv4_token given = Read(token, "token");
    const std::span<const float> row = In(logits, num_floats, "logits");
    if (s.num_top > 0) NeedRoom(given.top, s.num_top, &token->num_top);
    std::span<const uint32_t> mask;
    if (allowed != nullptr) mask = {allowed, static_cast<size_t>(s.vocab_size + 31) / 32};
    DSV4_ASSIGN_OR_RETURN(const SampledToken drawn, s.sampler->Sample(row, mask));
    dsv4_token out = TokenOf(drawn, {given.top, drawn.top.size()});
    out.top = given.top;
    Write(out, token, "token");
    return {};
  });
}

dsv4_status dsv4_run(dsv4_engine* engine, const dsv4_decode_item* items, size_t num_items, dsv4_token_fn on_token,
                     void* user) {
  return Guard([&]() -> Status {
    Engine& e = *Use(engine, "engine").engine;
    In(items, num_items, "items");
    std::vector<DecodeItem> decode;
    for (size_t i = 0; i < num_items; ++i) {
      (void)Read(items, "items");
      const dsv4_decode_item item = Read(At(items, i), "items");
      const std::span<const TokenId> stops = In(item.stop_ids, item.num_stop_ids, "items->stop_ids");
      decode.push_back({.session = Use(item.session, "items->session").session.get(),
                        .sampler = Use(item.sampler, "items->sampler").sampler.get(),
                        .first = item.first,
                        .max_tokens = item.max_tokens,
                        .stop_ids = {stops.begin(), stops.end()},
                        .speculate = item.no_drafts == 0});
    }
    std::vector<dsv4_logprob> top;
    return e.Decode(decode, [&](size_t item, const SampledToken& token) {
      if (on_token == nullptr) return true;
      top.resize(token.top.size());
      const dsv4_token out = TokenOf(token, top);
      return on_token(item, &out, user) == 0;
    });
  });
}

dsv4_status dsv4_snapshot_take(dsv4_session* session, dsv4_snapshot** snapshot) {
  return Guard([&]() -> Status {
    const dsv4_session& s = Use(session, "session");
    Out(snapshot, "snapshot");
    DSV4_ASSIGN_OR_RETURN(std::shared_ptr<const KvSnapshot> taken, s.session->Snapshot());
    *snapshot = new dsv4_snapshot(s.engine, std::move(taken));
    return {};
  });
}

void dsv4_snapshot_free(dsv4_snapshot* snapshot) { Free(snapshot); }

dsv4_status dsv4_snapshot_bytes(const dsv4_snapshot* snapshot, void* bytes, size_t* length) {
  return Guard([&]() -> Status {
    DSV4_ASSIGN_OR_RETURN(const std::shared_ptr<const SnapshotImage> image,
                          Use(snapshot, "snapshot").snapshot->MakeImage());
    NeedRoom(bytes, static_cast<size_t>(image->info().file_bytes), length);
    return image->CopyTo({static_cast<std::byte*>(bytes), *length});
  });
}

dsv4_status dsv4_snapshot_read(dsv4_engine* engine, const void* bytes, size_t length, dsv4_snapshot** snapshot) {
  return Guard([&]() -> Status {
    const dsv4_engine& e = Use(engine, "engine");
    Out(snapshot, "snapshot");
    const std::span<const std::byte> in = In(static_cast<const std::byte*>(bytes), length, "bytes");
    DSV4_ASSIGN_OR_RETURN(const std::shared_ptr<const SnapshotImage> image, e.engine->ReadSnapshot(in));
    DSV4_ASSIGN_OR_RETURN(std::shared_ptr<const KvSnapshot> read, e.engine->LoadSnapshot(*image));
    *snapshot = new dsv4_snapshot(e.engine, std::move(read));
    return {};
  });
}

}  // extern "C"
