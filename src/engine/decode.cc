// Engine::Decode.
#include <algorithm>
#include <new>
#include <utility>

#include "base/str.h"
#include "dsv4/sampling.h"
#include "engine/engine_impl.h"
#include "engine/sampler_impl.h"
#include "ops/advance/advance.h"
#include "ops/sample/sample.h"

namespace dsv4 {

EngineImpl::DecodeBuffers::~DecodeBuffers() {
  for (int32_t* p : arrived) {
    if (p != nullptr) device->FreeStaging(p);
  }
  if (staged_masks != nullptr) device->FreeStaging(staged_masks);
}

Status EngineImpl::Decode(std::span<const DecodeItem> items, const TokenFn& on_token) {
  bool on_device = device_->kind() != DeviceKind::kCpu && info_.vocab_size <= kMaxSampleVocab &&
                   static_cast<int64_t>(items.size()) <= StepBuffers::kSmallStep;
  for (const DecodeItem& item : items) {
    if (item.sampler == nullptr) return InvalidArgument("a decode item has no sampler");
    if (item.max_tokens < 1) return InvalidArgument("a decode item asks for less than one token");
    const auto* sampler = dynamic_cast<SamplerImpl*>(item.sampler);
    on_device = on_device && sampler != nullptr && sampler->params().top_logprobs < 0;
  }
  return on_device ? DecodeOnDevice(items, on_token) : DecodeOnHost(items, on_token);
}

Status EngineImpl::DecodeOnHost(std::span<const DecodeItem> items, const TokenFn& on_token) {
  const PoolUse use(pool_.get());  // also while a token is drawn
  struct Waiting {
    size_t item;
    TokenId next;
    int64_t drawn = 0;
    std::vector<float> logits = {};
  };
  std::vector<Waiting> live;
  for (size_t i = 0; i < items.size(); ++i) live.push_back({.item = i, .next = items[i].first});
  std::vector<StepItem> step;
  while (!live.empty()) {
    step.clear();
    for (Waiting& l : live) {
      step.push_back({.session = items[l.item].session, .tokens = {&l.next, 1}, .rows = LogitRows::kLast, .logits = &l.logits});
    }
    DSV4_RETURN_IF_ERROR(Step(step));
    for (Waiting& l : live) {
      const DecodeItem& item = items[l.item];
      const std::span<const uint32_t> allowed = item.allowed ? item.allowed() : std::span<const uint32_t>();
      DSV4_ASSIGN_OR_RETURN(const SampledToken token, item.sampler->Sample(l.logits, allowed));
      l.next = token.id;
      const bool stop = std::find(item.stop_ids.begin(), item.stop_ids.end(), token.id) != item.stop_ids.end();
      if (!on_token(l.item, token) || stop || ++l.drawn >= item.max_tokens) l.next = -1;
    }
    std::erase_if(live, [](const Waiting& l) { return l.next < 0; });
  }
  return {};
}

Status EngineImpl::DecodeOnDevice(std::span<const DecodeItem> items, const TokenFn& on_token) {
  std::vector<Live> live;
  for (size_t i = 0; i < items.size(); ++i) {
    auto* session = dynamic_cast<SessionImpl*>(items[i].session);
    if (session == nullptr || &session->engine() != this) {
      return InvalidArgument("a decode item's session is missing or belongs to another engine");
    }
    for (const Live& other : live) {
      if (other.session == session) return InvalidArgument("a session appears twice among the decode items");
    }
    live.push_back({.item = i, .session = session, .sampler = static_cast<SamplerImpl*>(items[i].sampler), .next = items[i].first});
  }
  try {
    if (decode_buffers_ == nullptr) {
      auto buffers = std::make_unique<DecodeBuffers>();
      buffers->device = device_;
      constexpr int64_t kMost = StepBuffers::kSmallStep;
      bool ok = buffers->rows.Allocate(*device_, kMost * static_cast<int64_t>(sizeof(SampleRow))) &&
                buffers->tokens.Allocate(*device_, kMost * 4);
      for (int32_t*& p : buffers->arrived) ok = ok && (p = static_cast<int32_t*>(device_->AllocateStaging(kMost * 4))) != nullptr;
      if (!ok) return ResourceExhausted("no memory for the buffers of a decode loop");
      decode_buffers_ = std::move(buffers);
    }
    if (std::any_of(items.begin(), items.end(), [](const DecodeItem& item) { return static_cast<bool>(item.allowed); }) &&
        decode_buffers_->staged_masks == nullptr) {
      const int64_t bytes = StepBuffers::kSmallStep * mask_words() * 4;
      if (!decode_buffers_->masks.Allocate(*device_, bytes)) return ResourceExhausted("no memory for the tokens that are allowed");
      decode_buffers_->staged_masks = static_cast<uint32_t*>(device_->AllocateStaging(bytes));
      if (decode_buffers_->staged_masks == nullptr) return ResourceExhausted("no memory for the tokens that are allowed");
    }
    while (!live.empty()) {
      DSV4_RETURN_IF_ERROR(DecodeRun(live, items, on_token));
      std::erase_if(live, [](const Live& l) { return l.ended; });
    }
    return {};
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for this step; use fewer sequences");
  }
}

Status EngineImpl::PlaceSampleRows(std::vector<Live>& live, std::span<const DecodeItem> items) {
  std::vector<SampleRow> rows;
  int64_t num_masks = 0;
  const int64_t v = info_.vocab_size;
  for (Live& l : live) {
    const SamplingParams& p = l.sampler->params();
    SampleRow row{.temperature = p.temperature, .top_p = p.top_p, .min_p = p.min_p, .repeat_penalty = p.repeat_penalty,
                  .presence_penalty = p.presence_penalty, .frequency_penalty = p.frequency_penalty,
                  .top_k = static_cast<int32_t>(std::min(p.top_k, v)), .seed = l.sampler->seed(),
                  .num_outputs = l.sampler->num_outputs()};
    if (l.sampler->has_penalties()) {
      std::vector<uint16_t> counts(static_cast<size_t>(2 * v));
      for (TokenId id = 0; id < v; ++id) {
        counts[static_cast<size_t>(id)] = l.sampler->is_seen(id) ? 1 : 0;
        counts[static_cast<size_t>(v + id)] = static_cast<uint16_t>(std::min<int64_t>(l.sampler->output_count(id), 65535));
      }
      if (l.counts.data() == nullptr && !l.counts.Allocate(*device_, 4 * v)) return ResourceExhausted("no memory for the counts of penalties");
      device_->Upload(l.counts.data(), counts.data(), 4 * v);
      row.prompt_count = reinterpret_cast<const uint16_t*>(l.counts.data());
      row.output_count = reinterpret_cast<uint16_t*>(l.counts.data()) + v;
    }
    if (!p.logit_bias.empty()) {
      const auto n = static_cast<int64_t>(p.logit_bias.size());
      std::vector<int32_t> ids;
      std::vector<float> values;
      for (const auto& [id, bias] : p.logit_bias) ids.push_back(id), values.push_back(bias);
      if (l.bias.data() == nullptr && !l.bias.Allocate(*device_, 8 * n)) return ResourceExhausted("no memory for the logit bias");
      device_->Upload(l.bias.data(), ids.data(), 4 * n);
      device_->Upload(l.bias.data() + 4 * n, values.data(), 4 * n);
      row.num_bias = static_cast<int32_t>(n);
      row.bias_ids = reinterpret_cast<const int32_t*>(l.bias.data());
      row.bias = reinterpret_cast<const float*>(l.bias.data() + 4 * n);
    }
    if (items[l.item].allowed) {
      row.allowed = reinterpret_cast<const uint32_t*>(decode_buffers_->masks.data()) + num_masks++ * mask_words();
    }
    rows.push_back(row);
  }
  device_->Upload(decode_buffers_->rows.data(), rows.data(), static_cast<int64_t>(rows.size() * sizeof(SampleRow)));
  return {};
}

// Brings the tokens that may be drawn now to the device: a row for each sequence that asks, in order.
void EngineImpl::PlaceMasks(const std::vector<Live>& live, std::span<const DecodeItem> items) {
  int64_t num_masks = 0;
  for (const Live& l : live) {
    if (!items[l.item].allowed) continue;
    uint32_t* row = decode_buffers_->staged_masks + num_masks++ * mask_words();
    const std::span<const uint32_t> allowed = l.ended ? std::span<const uint32_t>() : items[l.item].allowed();
    if (allowed.empty()) {
      std::fill(row, row + mask_words(), ~0u);
    } else {
      std::copy_n(allowed.begin(), static_cast<size_t>(mask_words()), row);
    }
  }
  device_->Upload(decode_buffers_->masks.data(), decode_buffers_->staged_masks, num_masks * mask_words() * 4);
}

// One step is always queued behind the one whose tokens are awaited, so the device never waits for the host. What such a
// step appends for a sequence that turns out to have ended is not committed and does no harm: it overwrites the one
// window row and the one compressor slot that no later token reads, and a row that is written again when its position is.
// Where some sequence asks which tokens it may draw, the model runs ahead in the same way, and only the draw waits for the
// answer, which follows from the token before.
Status EngineImpl::DecodeRun(std::vector<Live>& live, std::span<const DecodeItem> items, const TokenFn& on_token) {
  const auto n = static_cast<int64_t>(live.size());
  EnsureActivations(n, n);
  // Room for the token behind the sequence and the one behind that. False: its page table has moved.
  const auto reserve = [](Live& l, int64_t tokens) -> Result<bool> {
    const auto* before = l.session->cache().View(0, 0, 0).pages;
    DSV4_RETURN_IF_ERROR(l.session->cache().Reserve(tokens));
    return l.session->cache().View(0, 0, 0).pages == before;
  };
  step_.Clear();
  for (int64_t i = 0; i < n; ++i) {
    Live& l = live[static_cast<size_t>(i)];
    DSV4_RETURN_IF_ERROR(Check(*l.session, {&l.next, 1}));
    const auto start = static_cast<int64_t>(l.session->tokens().size());
    DSV4_RETURN_IF_ERROR(reserve(l, start + 2).status());
    l.session->ReserveTokens(2);
    step_.tokens.push_back(l.next);
    step_.positions.push_back(start);
    step_.sequence_of.push_back(static_cast<int32_t>(i));
    step_.sequences.push_back(l.session->cache().View(start, i, i + 1));
    step_.logit_rows.push_back(static_cast<int32_t>(i));
  }
  const StepView view = step_buffers_.Place(step_);
  DSV4_RETURN_IF_ERROR(PlaceSampleRows(live, items));
  const Tensor sampled{decode_buffers_->tokens.data(), DType::kI32, {n}}, logits = activations_->Logits(n);
  const auto forward = [&] { model_->Forward(ctx_, view, *activations_, logits); };
  const auto draw = [&] {
    Sample(ctx_, {.logits = logits, .rows = reinterpret_cast<SampleRow*>(decode_buffers_->rows.data()), .tokens = sampled});
    Advance(ctx_, {.sampled = sampled, .tokens = view.tokens, .positions = view.positions,
                   .sequences = const_cast<SequenceView*>(view.sequences)});
  };
  const bool masked = std::any_of(live.begin(), live.end(), [&](const Live& l) { return static_cast<bool>(items[l.item].allowed); });
  Recording *model = nullptr, *rest = nullptr;  // of a step; the second one is started when the tokens before are known
  const auto record = [&](std::map<int64_t, std::unique_ptr<Recording>>& of, const std::function<void()>& work) {
    std::unique_ptr<Recording>& recording = of[n];
    if (recording == nullptr) recording = device_->Record(work);
    return recording.get();
  };
  if (masked) {
    model = record(decode_steps_, forward);
    rest = record(decode_draws_, draw);
  } else {
    model = record(decode_loops_, [&] { forward(), draw(); });
  }
  if (model == nullptr || (masked && rest == nullptr)) {
    DSV4_RETURN_IF_ERROR(device_->Synchronize());
    return Internal("a decode step could not be recorded");
  }

  int64_t marks[2] = {};
  const auto fetch = [&](int64_t step) {
    device_->DownloadLater(decode_buffers_->arrived[step % 2], sampled.data, 4 * n);
    marks[step % 2] = device_->Mark();
  };
  const auto launch = [&](int64_t step) {
    model->Launch();
    if (!masked) fetch(step);
  };
  const auto finish = [&](int64_t step) {
    if (!masked) return;
    PlaceMasks(live, items);
    rest->Launch();
    fetch(step);
  };
  // Takes the tokens of a step: true while every sequence goes on.
  const auto collect = [&](int64_t step) -> Result<bool> {
    DSV4_RETURN_IF_ERROR(device_->Wait(marks[step % 2]));
    bool all_go_on = true;
    for (size_t i = 0; i < live.size(); ++i) {
      Live& l = live[i];
      if (l.ended) continue;
      l.session->ReserveTokens(2);
      l.session->Commit({&l.next, 1});
      const SampledToken token{.id = decode_buffers_->arrived[step % 2][i]};
      if (token.id == kSampleBanned) return InvalidArgument(kBannedAll);
      if (token.id < 0) return Internal("sampler: the logits are NaN or all -inf; the model's weights or output are damaged");
      l.sampler->Count(token.id);
      l.next = token.id;
      ++l.drawn;
      const DecodeItem& item = items[l.item];
      const bool stop = std::find(item.stop_ids.begin(), item.stop_ids.end(), token.id) != item.stop_ids.end();
      l.ended = !on_token(l.item, token) || stop || l.drawn >= item.max_tokens;
      all_go_on = all_go_on && !l.ended;
    }
    return all_go_on;
  };

  launch(0);
  finish(0);
  for (int64_t step = 0;; ++step) {
    bool more = true;
    for (Live& l : live) {
      const auto after = static_cast<int64_t>(l.session->tokens().size()) + 2;  // tokens once the next step has run
      more = more && l.drawn + 1 < items[l.item].max_tokens && after <= info_.max_context;
      if (!more) break;
      DSV4_ASSIGN_OR_RETURN(const bool in_place, reserve(l, after));
      more = in_place;
    }
    if (more) launch(step + 1);
    Result<bool> go_on = collect(step);
    if (!go_on.ok()) {
      (void)device_->Synchronize();
      return go_on.status();
    }
    if (more) finish(step + 1);
    if (*go_on && more) continue;
    if (more) DSV4_RETURN_IF_ERROR(collect(step + 1).status());
    return {};
  }
}

}  // namespace dsv4
