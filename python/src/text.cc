#include "text.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "dsv4/chat.h"
#include "dsv4/json_text.h"
#include "dsv4/output_parser.h"
#include "errors.h"
#include "threads.h"

namespace dsv4::python {

using nb::literals::operator""_a;

namespace {

std::string FolderOf(nb::handle model) {
  return nb::cast<std::string>(nb::module_::import_("dsv4._model").attr("folder")(model));
}

PyTokenizer LoadTokenizer(nb::handle model) {
  const std::string folder = FolderOf(model);
  return {Must(Tokenizer::Load(folder))};
}

nb::list Encode(const PyTokenizer& self, const std::string& text, bool recognize_added_tokens) {
  std::vector<TokenId> ids;
  {
    const ReleasedGil released;
    ids = self.tokenizer->Encode(text, {.recognize_added_tokens = recognize_added_tokens});
  }
  return ToList(ids);
}

std::string Decode(const PyTokenizer& self, nb::handle ids, bool skip_special) {
  return Must(self.tokenizer->Decode(ToIds(ids), {.skip_special = skip_special}));
}

nb::bytes TokenBytes(const PyTokenizer& self, int64_t id) {
  if (id < 0 || id >= self.tokenizer->vocab_size()) {
    Raise(InvalidArgument("token id " + std::to_string(id) + " is outside the vocabulary; accepted: 0 to " +
                          std::to_string(self.tokenizer->vocab_size() - 1)));
  }
  const std::string_view bytes = self.tokenizer->TokenBytes(static_cast<TokenId>(id));
  return nb::bytes(bytes.data(), bytes.size());
}

// A StreamDecoder with its tokenizer, which must outlive it.
struct PyStreamDecoder {
  PyStreamDecoder(const PyTokenizer& from, bool skip_special)
      : tokenizer(from.tokenizer), decoder(*tokenizer, {.skip_special = skip_special}) {}
  std::shared_ptr<const Tokenizer> tokenizer;
  StreamDecoder decoder;
};

ChatDialect ToDialect(const std::string& name, nb::handle model) {
  if (name != "auto") return Must(ParseChatDialect(name));
  return DetectDialect(FolderOf(model));
}

// Returns the prompt, the byte ranges of it that come from the messages, and the functions of the tools as JSON text.
nb::tuple RenderServed(const std::string& request_json, const std::string& dialect, nb::handle model) {
  const ChatRequest request = Must(ParseChatRequest(request_json));
  const RenderedPrompt prompt = Must(RenderServedPrompt(request, ToDialect(dialect, model)));
  std::vector<std::pair<size_t, size_t>> ranges;
  for (const TextRange& range : prompt.content_ranges) ranges.emplace_back(range.begin, range.end);
  return nb::make_tuple(prompt.text, ranges, request.tools);
}

}  // namespace

void BindText(nb::module_& m) {
  nb::class_<PyTokenizer>(
      m, "Tokenizer",
      "Converts text to token ids and back, as the model's tokenizer.json defines it. Any thread may "
      "use it.\n\n"
      ">>> import dsv4\n"
      ">>> tokenizer = dsv4.Tokenizer()\n"
      ">>> tokenizer.decode(tokenizer.encode('In the beginning'))\n"
      "'In the beginning'")
      .def(
          "__init__", [](PyTokenizer* self, nb::handle model) { new (self) PyTokenizer(LoadTokenizer(model)); },
          "model"_a = nb::none(), nb::sig("def __init__(self, model: str | os.PathLike[str] | None = None) -> None"),
          "Reads tokenizer.json in a model's folder; None: of the bundled model. Errors: NotFoundError, DataLossError, "
          "UnsupportedError.")
      .def_static("load", &LoadTokenizer, "model"_a = nb::none(),
                  nb::sig("def load(model: str | os.PathLike[str] | None = None) -> Tokenizer"),
                  "The same as the constructor.")
      .def("encode", &Encode, "text"_a, "recognize_added_tokens"_a = true,
           nb::sig("def encode(self, text: str, recognize_added_tokens: bool = True) -> list[int]"),
           "Returns the token ids of a text. Adds none, not even BOS. recognize_added_tokens: False: '<think>' and the "
           "like stay ordinary text, so that untrusted text cannot forge turns.")
      .def("decode", &Decode, "ids"_a, "skip_special"_a = false,
           nb::sig(
               "def decode(self, ids: collections.abc.Sequence[int] | typing.Any, skip_special: bool = False) -> str"),
           "Returns the text of token ids. skip_special: leaves out BOS, EOS and padding. Error: InvalidArgumentError "
           "(an "
           "id outside the vocabulary).")
      .def("token_bytes", &TokenBytes, "id"_a,
           "Returns the bytes of one token, possibly a part of a character. Error: InvalidArgumentError.")
      .def(
          "find_token",
          [](const PyTokenizer& self, const std::string& text) { return self.tokenizer->FindToken(text); }, "text"_a,
          "Returns the id of the token with exactly this text, or None.")
      .def_prop_ro(
          "vocab_size", [](const PyTokenizer& self) { return self.tokenizer->vocab_size(); },
          "Number of tokens: ids are 0 to vocab_size - 1.")
      .def_prop_ro(
          "bos_token_id", [](const PyTokenizer& self) { return self.tokenizer->bos_token_id(); },
          "Id of BOS; -1: none.")
      .def_prop_ro(
          "eos_token_id", [](const PyTokenizer& self) { return self.tokenizer->eos_token_id(); },
          "Id of EOS; -1: none.");

  nb::class_<PyStreamDecoder>(
      m, "StreamDecoder", "Decodes ids one by one into complete characters. The joined texts equal Tokenizer.decode.")
      .def(nb::init<const PyTokenizer&, bool>(), "tokenizer"_a, "skip_special"_a = false,
           "skip_special: leaves out BOS, EOS and padding.")
      .def(
          "push", [](PyStreamDecoder& self, TokenId id) { return Must(self.decoder.Push(id)); }, "id"_a,
          "Returns the text that this token completes, often ''. Error: InvalidArgumentError.")
      .def(
          "finish", [](PyStreamDecoder& self) { return self.decoder.Finish(); },
          "Ends the text. Returns '', or U+FFFD for an incomplete character.");

  m.def(
      "_render_chat",
      [](const std::string& request, const std::string& dialect, nb::handle model) {
        return Must(RenderPrompt(Must(ParseChatRequest(request)), ToDialect(dialect, model)));
      },
      "request_json"_a, "dialect"_a, "model"_a.none(),
      nb::sig("def _render_chat(request_json: str, dialect: str, model: str | os.PathLike[str] | None) -> str"));
  m.def("_render_served", &RenderServed, "request_json"_a, "dialect"_a, "model"_a.none(),
        nb::sig("def _render_served(request_json: str, dialect: str, model: str | os.PathLike[str] | None) -> "
                "tuple[str, list[tuple[int, int]], list[str]]"));
  m.def(
      "_parse_output",
      [](const std::string& text, bool thinking) { return MessageToJson(ParseOutput(text, thinking)); }, "text"_a,
      "thinking"_a);
}

}  // namespace dsv4::python
