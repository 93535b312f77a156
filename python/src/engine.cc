#include "engine.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "errors.h"

namespace dsv4::python {

using nb::literals::operator""_a;

namespace {

KvDtype ToKvDtype(const std::string& name) {
  if (name == "fp8") return KvDtype::kFp8;
  if (name == "bf16") return KvDtype::kBf16;
  if (name == "f32") return KvDtype::kF32;
  Raise(InvalidArgument("kv_dtype is '" + name + "'; accepted: 'fp8', 'bf16', 'f32'"));
}

Speculate ToSpeculate(const std::string& name) {
  const auto* const found = std::find(std::begin(kSpeculateNames), std::end(kSpeculateNames), name);
  if (found != std::end(kSpeculateNames)) return static_cast<Speculate>(found - std::begin(kSpeculateNames));
  Raise(InvalidArgument("speculate is '" + name + "'; accepted: 'off', 'lookup', 'mtp', 'dspark', 'auto'"));
}

int64_t ToBytes(nb::handle size) {
  return nb::cast<int64_t>(nb::module_::import_("dsv4._model").attr("num_bytes")(size));
}

CorePtr LoadCore(nb::handle model, const std::string& device, int num_threads, int64_t max_context,
                 const std::string& speculate, int64_t draft_tokens, const std::string& kv_dtype, int64_t prefill_chunk,
                 bool batch_invariant, nb::handle gpu_memory, nb::handle host_memory) {
  EngineOptions options;
  options.model_dir = nb::cast<std::string>(nb::module_::import_("dsv4._model").attr("folder")(model));
  options.device = device;
  options.num_threads = num_threads;
  options.max_context = max_context;
  options.drafts.speculate = ToSpeculate(speculate);
  options.drafts.tokens = draft_tokens;
  options.kv_dtype = ToKvDtype(kv_dtype);
  options.prefill_chunk = prefill_chunk;
  options.batch_invariant = batch_invariant;
  options.offload.gpu_memory = ToBytes(gpu_memory);
  options.offload.host_memory = ToBytes(host_memory);
  auto core = MakeClosable<EngineCore>();
  core->Load(options);
  return core;
}

int64_t NumRows(LogitRows rows, size_t num_tokens) {
  if (rows == LogitRows::kNone) return 0;
  return rows == LogitRows::kLast ? 1 : static_cast<int64_t>(num_tokens);
}

nb::object Append(PySession& self, nb::handle ids, const std::string& logits, nb::object out) {
  struct Call {
    std::vector<TokenId> tokens;
    LogitRows rows;
    std::vector<float> values;
    OutArray out;
    std::unique_ptr<DeferredRef> array;  // keeps the memory of `out`
  };
  const auto call = std::make_shared<Call>();
  call->tokens = ToIds(ids);
  call->rows = ToRows(logits);
  const int64_t vocab_size = self.core->info().vocab_size;
  if (!out.is_none()) {
    call->out = ToOut(out, NumRows(call->rows, call->tokens.size()), vocab_size);
    call->array = std::make_unique<DeferredRef>(out);
  }
  self.core->Run([slot = self.slot, call](Engine&, const std::atomic<bool>& stop) {
    const auto progress = [&stop](const Progress&) { return !stop; };
    Session& session = *slot->session;
    const Status status = call->array != nullptr
                              ? session.Append(call->tokens, call->rows, std::span(call->out.data, call->out.size),
                                               progress)
                              : session.Append(call->tokens, call->rows,
                                               call->rows == LogitRows::kNone ? nullptr : &call->values, progress);
    slot->length = static_cast<int64_t>(session.tokens().size());
    return status;
  });
  if (call->array != nullptr) return out;
  return call->rows == LogitRows::kNone ? nb::none() : ToArray(std::move(call->values), vocab_size);
}

nb::object Step(PyEngine& self, const std::vector<std::pair<nb::object, nb::object>>& items,
                const std::string& logits) {
  struct Call {
    std::vector<SlotPtr> slots;
    std::vector<std::vector<TokenId>> tokens;
    std::vector<std::vector<float>> rows;
    std::vector<float> all;
  };
  self.core->Check();
  const LogitRows rows = ToRows(logits);
  const auto call = std::make_shared<Call>();
  for (const auto& [session, ids] : items) {
    const auto& held = nb::cast<const PySession&>(session);
    if (held.core != self.core) Raise(InvalidArgument("a session of this step belongs to another engine"));
    call->slots.push_back(held.slot);
    call->tokens.push_back(ToIds(ids));
  }
  call->rows.resize(items.size());
  self.core->Run([call, rows](Engine& engine, const std::atomic<bool>&) {
    std::vector<StepItem> step;
    for (size_t i = 0; i < call->slots.size(); ++i) {
      Session* const session = call->slots[i]->session.get();
      const bool decodes = call->tokens[i].size() == 1 && !session->tokens().empty();
      step.push_back({.session = session,
                      .tokens = call->tokens[i],
                      .rows = rows,
                      .logits = rows == LogitRows::kNone ? nullptr : &call->rows[i],
                      .prompt_tokens = decodes ? 0 : static_cast<int64_t>(call->tokens[i].size())});
    }
    const Status status = engine.Step(step);
    for (const SlotPtr& slot : call->slots) slot->length = static_cast<int64_t>(slot->session->tokens().size());
    if (call->rows.size() == 1) {
      call->all = std::move(call->rows[0]);
    } else {
      for (const auto& part : call->rows) call->all.insert(call->all.end(), part.begin(), part.end());
    }
    return status;
  });
  if (rows == LogitRows::kNone) return nb::none();
  return ToArray(std::move(call->all), self.core->info().vocab_size);
}

PySession NewSession(PyEngine& self, nb::handle snapshot) {
  self.core->Check();
  const auto slot = std::make_shared<Slot>();
  SlotPtr from;
  if (!snapshot.is_none()) {
    const auto& held = nb::cast<const PySnapshot&>(snapshot);
    if (held.core != self.core)
      Raise(InvalidArgument("the snapshot belongs to another engine: pass its bytes to read_snapshot"));
    from = held.slot;
  }
  self.core->Run([core = self.core.get(), slot, from](Engine& engine, const std::atomic<bool>&) -> Status {
    DSV4_ASSIGN_OR_RETURN(slot->session, from == nullptr ? engine.NewSession() : engine.NewSession(*from->snapshot));
    slot->length = static_cast<int64_t>(slot->session->tokens().size());
    core->Keep(slot);
    return {};
  });
  return {self.core, slot};
}

PySnapshot TakeSnapshot(PySession& self) {
  const auto slot = std::make_shared<Slot>();
  self.core->Run([core = self.core.get(), session = self.slot, slot](Engine&, const std::atomic<bool>&) -> Status {
    DSV4_ASSIGN_OR_RETURN(slot->snapshot, session->session->Snapshot());
    slot->length = slot->snapshot->num_tokens();
    core->Keep(slot);
    return {};
  });
  return {self.core, slot};
}

nb::bytes SnapshotBytes(PySnapshot& self) {
  const auto data = std::make_shared<std::vector<std::byte>>();
  self.core->Run([slot = self.slot, data](Engine&, const std::atomic<bool>&) -> Status {
    DSV4_ASSIGN_OR_RETURN(const std::shared_ptr<const SnapshotImage> image, slot->snapshot->MakeImage());
    DSV4_ASSIGN_OR_RETURN(*data, image->bytes());
    return {};
  });
  return nb::bytes(data->data(), data->size());
}

PySnapshot LoadSnapshot(PyEngine& self, nb::handle path) {
  const auto name = nb::cast<std::string>(nb::module_::import_("os").attr("fsdecode")(path));
  const auto slot = std::make_shared<Slot>();
  self.core->Run([core = self.core.get(), slot, name](Engine& engine, const std::atomic<bool>&) -> Status {
    DSV4_ASSIGN_OR_RETURN(slot->snapshot, engine.LoadSnapshot(name));
    slot->length = slot->snapshot->num_tokens();
    core->Keep(slot);
    return {};
  });
  return {self.core, slot};
}

PySnapshot ReadSnapshot(PyEngine& self, nb::bytes data) {
  const auto slot = std::make_shared<Slot>();
  const auto* const begin = static_cast<const std::byte*>(data.data());
  const auto bytes = std::make_shared<std::vector<std::byte>>(begin, begin + data.size());
  self.core->Run([core = self.core.get(), slot, bytes](Engine& engine, const std::atomic<bool>&) -> Status {
    DSV4_ASSIGN_OR_RETURN(const std::string fingerprint, engine.SnapshotFingerprint());
    DSV4_ASSIGN_OR_RETURN(const std::shared_ptr<const SnapshotImage> image, engine.ReadSnapshot(std::span(*bytes)));
    DSV4_ASSIGN_OR_RETURN(slot->snapshot, engine.LoadSnapshot(*image));
    slot->length = slot->snapshot->num_tokens();
    core->Keep(slot);
    return {};
  });
  return {self.core, slot};
}

void SaveSnapshot(PySnapshot& self, nb::handle path) {
  const auto name = nb::cast<std::string>(nb::module_::import_("os").attr("fsdecode")(path));
  self.core->Run([slot = self.slot, name](Engine&, const std::atomic<bool>&) { return slot->snapshot->Save(name); });
}

nb::list SessionTokens(PySession& self) {
  const auto tokens = std::make_shared<std::vector<TokenId>>();
  self.core->Run([slot = self.slot, tokens](Engine&, const std::atomic<bool>&) -> Status {
    *tokens = slot->session->tokens();
    return {};
  });
  return ToList(*tokens);
}

void Truncate(PySession& self, int64_t length) {
  self.core->Run([slot = self.slot, length](Engine&, const std::atomic<bool>&) {
    const Status status = slot->session->Truncate(length);
    slot->length = static_cast<int64_t>(slot->session->tokens().size());
    return status;
  });
}

nb::dict Info(const PyEngine& self) {
  const ModelInfo& info = self.core->info();
  nb::dict dict;
  dict["vocab_size"] = info.vocab_size;
  dict["num_layers"] = info.num_layers;
  dict["hidden_size"] = info.hidden_size;
  dict["max_context"] = info.max_context;
  dict["bos_token_id"] = info.bos_token_id;
  dict["eos_token_ids"] = ToList(info.eos_token_ids);
  dict["weight_bytes"] = info.weight_bytes;
  dict["kv_fixed_bytes"] = info.kv_fixed_bytes;
  dict["kv_bytes_per_token"] = info.kv_bytes_per_token;
  dict["drafter"] = std::string(kSpeculateNames[static_cast<size_t>(info.drafter)]);
  return dict;
}

int64_t KvBytes(PyEngine& self) {
  const auto bytes = std::make_shared<int64_t>(0);
  self.core->Run([bytes](Engine& engine, const std::atomic<bool>&) -> Status {
    *bytes = engine.kv_bytes();
    return {};
  });
  return *bytes;
}

void CloseCore(const CorePtr& core) {
  if (!core->in_this_process()) return;
  core->AskToStop();
  const ReleasedGil released;
  core->Close();
}

void BindSession(nb::module_& m) {
  nb::class_<PySnapshot>(m, "Snapshot",
                         "The state of a session at one point. Any number of sessions of its engine can continue from "
                         "it (Engine.new_session). bytes(snapshot) is the content of a snapshot file.")
      .def(
          "__len__", [](const PySnapshot& self) { return self.slot->length.load(); }, "Number of tokens.")
      .def("__bytes__", &SnapshotBytes,
           "Returns the state as bytes, for Engine.read_snapshot. Errors: ResourceExhaustedError.")
      .def("save", &SaveSnapshot, "path"_a, nb::sig("def save(self, path: str | os.PathLike[str]) -> None"),
           "Writes a snapshot file: all of it, or nothing. Errors: NotFoundError (no such folder), "
           "ResourceExhaustedError (the disk is full).");

  nb::class_<PySession>(m, "Session",
                        "One timeline of tokens with its state. Engine.new_session makes it. The calls of an engine's "
                        "sessions run one after the other, whatever thread they come from.")
      .def("append", &Append, "ids"_a, "logits"_a = "last", "out"_a = nb::none(),
           nb::sig("def append(self, ids: collections.abc.Sequence[int] | typing.Any, logits: "
                   "typing.Literal['last', 'all', 'none'] = 'last', out: typing.Any = None) -> typing.Any"),
           "Appends tokens and returns logits (natural logarithms up to a constant, before any temperature).\n\n"
           "ids: token ids, n of them: a sequence of int, or an array of int32 or int64 [n] (NumPy; others by "
           "DLPack).\n"
           "logits: 'last' returns float32 [1, vocab_size], of the token after the last one; 'all' returns float32 "
           "[n, vocab_size]; 'none' returns None.\n"
           "out: a writable array of float32 with exactly these values (NumPy, or torch on the CPU). It is filled and "
           "returned.\n\n"
           "The result is a NumPy array. torch.from_dlpack shares its memory.\n"
           "Errors: InvalidArgumentError (an id outside the vocabulary, no ids, a wrong `out`), ResourceExhaustedError "
           "(the context limit, memory): nothing is appended. Ctrl-C: KeyboardInterrupt; the tokens of the chunks that "
           "were done stay (len).")
      .def("truncate", &Truncate, "length"_a,
           "Removes the tokens at positions from `length`, as if they had never been appended. Errors: "
           "InvalidArgumentError (more than len(session), or more than 8 tokens before the longest length it ever had; "
           "0 always works).")
      .def("snapshot", &TakeSnapshot,
           "Returns the state after the tokens so far. Errors: InvalidArgumentError (no tokens), "
           "ResourceExhaustedError.")
      .def_prop_ro("tokens", &SessionTokens, nb::sig("def tokens(self) -> list[int]"), "The token ids, in order.")
      .def(
          "__len__", [](const PySession& self) { return self.slot->length.load(); }, "Number of tokens.");
}

}  // namespace

void BindEngine(nb::module_& m) {
  BindSession(m);
  nb::class_<PyEngine>(m, "Engine",
                       "A loaded model, for programs that run steps themselves. LLM is simpler.\n\n"
                       "    with dsv4.Engine() as engine:\n"
                       "        session = engine.new_session()\n"
                       "        logits = session.append(ids)   # float32 [1, vocab_size]")
      .def(
          "__init__",
          [](PyEngine* self, nb::handle model, const std::string& device, int num_threads, int64_t max_context,
             const std::string& speculate, int64_t draft_tokens, const std::string& kv_dtype, int64_t prefill_chunk,
             bool batch_invariant, nb::handle gpu_memory, nb::handle host_memory) {
            new (self) PyEngine{LoadCore(model, device, num_threads, max_context, speculate, draft_tokens, kv_dtype,
                                         prefill_chunk, batch_invariant, gpu_memory, host_memory)};
          },
          "model"_a = nb::none(), nb::kw_only(), "device"_a = "cpu", "num_threads"_a = 0, "max_context"_a = 0,
          "speculate"_a = "off", "draft_tokens"_a = 0, "kv_dtype"_a = "fp8", "prefill_chunk"_a = 0,
          "batch_invariant"_a = false, "gpu_memory"_a = 0, "host_memory"_a = 0,
          nb::sig(
              "def __init__(self, model: str | os.PathLike[str] | None = None, *, device: str = 'cpu', num_threads: "
              "int = 0, max_context: int = 0, speculate: typing.Literal['off', 'lookup', 'mtp', 'dspark', 'auto'] = "
              "'off', draft_tokens: int = 0, kv_dtype: typing.Literal['fp8', 'bf16', 'f32'] = 'fp8', prefill_chunk: "
              "int = 0, batch_invariant: bool = False, gpu_memory: int | str = 0, host_memory: int | str = 0) -> "
              "None"),
          "Loads a model. Ctrl-C stops it.\n\n"
          "model: folder of a checkpoint; None: the bundled model.\n"
          "device: 'cpu', 'cuda', 'cuda:1'; several GPUs: 'cuda:0,1', 'cuda:0-3'.\n"
          "num_threads: CPU threads; 0: one per core.\n"
          "max_context: tokens; 0: the model's limit.\n"
          "speculate, draft_tokens: the drafter, and draft tokens per step (0: its own number).\n"
          "kv_dtype: storage of the KV state.\n"
          "prefill_chunk: prompt tokens per pass; 0: 512 on a CPU, 4096 on a GPU.\n"
          "batch_invariant: GPU: prompts are computed like decode rows; slower.\n"
          "gpu_memory, host_memory: limits for weights, in bytes or as '20GB', '20GiB'; 0: none.\n\n"
          "Errors: NotFoundError, DataLossError (damaged files), UnsupportedError, ResourceExhaustedError, "
          "InvalidArgumentError.")
      .def("new_session", &NewSession, "snapshot"_a = nb::none(),
           nb::sig("def new_session(self, snapshot: Snapshot | None = None) -> Session"),
           "Returns an empty session, or one that continues from a snapshot with the same bits. Errors: "
           "ResourceExhaustedError, InvalidArgumentError (a snapshot of another engine).")
      .def("step", &Step, "items"_a, "logits"_a = "last",
           nb::sig("def step(self, items: collections.abc.Sequence[tuple[Session, collections.abc.Sequence[int] | "
                   "typing.Any]], logits: typing.Literal['last', 'all', 'none'] = 'last') -> typing.Any"),
           "Appends tokens to several sessions in one pass: faster than one after the other, with the same bits.\n\n"
           "items: pairs (session, ids), each session at most once.\n"
           "Returns float32 [items, vocab_size] with 'last', [all tokens, vocab_size] with 'all' (in the order of the "
           "items), None with 'none'. Errors: as Session.append; no session has changed.")
      .def("load_snapshot", &LoadSnapshot, "path"_a,
           nb::sig("def load_snapshot(self, path: str | os.PathLike[str]) -> Snapshot"),
           "Loads a snapshot file. Errors: NotFoundError, DataLossError (damaged), UnsupportedError (of another model "
           "or device).")
      .def("read_snapshot", &ReadSnapshot, "data"_a,
           "Returns the snapshot of bytes(snapshot), also of another process. Errors: as load_snapshot.")
      .def_prop_ro("info", &Info, nb::sig("def info(self) -> dict[str, typing.Any]"),
                   "vocab_size, num_layers, hidden_size, max_context (tokens), bos_token_id (-1: none), eos_token_ids, "
                   "weight_bytes, kv_fixed_bytes (of a session), kv_bytes_per_token, drafter.")
      .def_prop_ro(
          "vocab_size", [](const PyEngine& self) { return self.core->info().vocab_size; }, "Number of logits of a row.")
      .def_prop_ro(
          "max_context", [](const PyEngine& self) { return self.core->info().max_context; },
          "Maximum number of tokens of a session.")
      .def_prop_ro(
          "eos_token_ids", [](const PyEngine& self) { return self.core->info().eos_token_ids; },
          "Ids that end a reply.")
      .def_prop_ro("kv_bytes", &KvBytes, "Bytes of KV memory that sessions and snapshots hold.")
      .def(
          "close", [](PyEngine& self) { CloseCore(self.core); },
          "Frees the model at once. Sessions and snapshots can no longer be used.")
      .def(
          "__enter__", [](nb::object self) { return self; }, nb::sig("def __enter__(self) -> Engine"))
      .def(
          "__exit__", [](PyEngine& self, nb::args) { CloseCore(self.core); },
          nb::sig("def __exit__(self, *args: object) -> None"));
}

}  // namespace dsv4::python
