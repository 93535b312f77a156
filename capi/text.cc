// Errors, and the functions about text.
#include <nlohmann/json.hpp>

#include "dsv4/chat.h"
#include "dsv4/json_text.h"
#include "dsv4/output_parser.h"
#include "dsv4/version.h"
#include "handles.h"

namespace dsv4::capi {

namespace {

thread_local std::string last_error;  // NOLINT: the C API's line of the last error, of this thread

}  // namespace

dsv4_status SetError(dsv4_status code, std::string_view line) noexcept {
  try {
    last_error = line;
  } catch (...) {
    last_error.clear();
  }
  return code;
}

void NeedRoom(const void* out, size_t needed, size_t* n) {
  if (n == nullptr) Refuse("the pointer to the buffer's length is NULL");
  const size_t room = out == nullptr ? 0 : *n;
  *n = needed;
  if (needed == 0 || (out != nullptr && needed <= room)) return;
  throw Failure{DSV4_TOO_SMALL,
                "the buffer has room for " + std::to_string(room) + ", and " + std::to_string(needed) + " are needed"};
}

}  // namespace dsv4::capi

using namespace dsv4;        // NOLINT: these functions are the C form of that namespace
using namespace dsv4::capi;  // NOLINT

static_assert(DSV4_INVALID_ARGUMENT == static_cast<int>(StatusCode::kInvalidArgument));
static_assert(DSV4_NOT_FOUND == static_cast<int>(StatusCode::kNotFound));
static_assert(DSV4_DATA_LOSS == static_cast<int>(StatusCode::kDataLoss));
static_assert(DSV4_UNSUPPORTED == static_cast<int>(StatusCode::kUnsupported));
static_assert(DSV4_RESOURCE_EXHAUSTED == static_cast<int>(StatusCode::kResourceExhausted));
static_assert(DSV4_CANCELLED == static_cast<int>(StatusCode::kCancelled));
static_assert(DSV4_INTERNAL == static_cast<int>(StatusCode::kInternal));

extern "C" {

const char* dsv4_last_error(void) { return last_error.c_str(); }

const char* dsv4_version(void) {
  try {
    static const std::string version = GetBuildInfo().version;
    return version.c_str();
  } catch (...) {
    return "";
  }
}

const char* dsv4_build_info_json(void) {
  try {
    static const std::string json = [] {
      const BuildInfo b = GetBuildInfo();
      return nlohmann::ordered_json({{"version", b.version},
                                     {"commit", b.commit},
                                     {"compiler", b.compiler},
                                     {"build_type", b.build_type},
                                     {"cpu_features", b.cpu_features},
                                     {"compiled_features", b.compiled_features},
                                     {"gpu_architectures", b.gpu_architectures}})
          .dump();
    }();
    return json.c_str();
  } catch (...) {
    return "{}";
  }
}

dsv4_status dsv4_tokenizer_load(const char* dir, dsv4_tokenizer** tokenizer) {
  return Guard([&]() -> Status {
    Out(tokenizer, "tokenizer");
    DSV4_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> loaded, Tokenizer::Load(PathIn(dir, "dir")));
    *tokenizer = new dsv4_tokenizer(std::move(loaded));
    return {};
  });
}

void dsv4_tokenizer_free(dsv4_tokenizer* tokenizer) { Free(tokenizer); }

dsv4_status dsv4_encode(const dsv4_tokenizer* tokenizer, const char* text, size_t length, uint32_t flags, int32_t* ids,
                        size_t* num_ids) {
  return Guard([&]() -> Status {
    const Tokenizer& t = *Use(tokenizer, "tokenizer").tokenizer;
    if (length >= size_t{4} << 30) Refuse("the text has 4 GiB or more; encode it in pieces");
    const std::vector<TokenId> encoded = t.Encode(TextIn(text, length, "text"),
                                                  {.recognize_added_tokens = (flags & DSV4_ENCODE_PLAIN) == 0});
    Fill(std::span<const TokenId>(encoded), ids, num_ids);
    return {};
  });
}

dsv4_status dsv4_decode(const dsv4_tokenizer* tokenizer, const int32_t* ids, size_t num_ids, uint32_t flags, char* text,
                        size_t* length) {
  return Guard([&]() -> Status {
    const Tokenizer& t = *Use(tokenizer, "tokenizer").tokenizer;
    DSV4_ASSIGN_OR_RETURN(const std::string decoded,
                          t.Decode(In(ids, num_ids, "ids"), {.skip_special = (flags & DSV4_DECODE_NO_SPECIAL) != 0}));
    FillText(decoded, text, length);
    return {};
  });
}

dsv4_status dsv4_token_bytes(const dsv4_tokenizer* tokenizer, int32_t id, const char** bytes, size_t* length) {
  return Guard([&]() -> Status {
    const Tokenizer& t = *Use(tokenizer, "tokenizer").tokenizer;
    Out(bytes, "bytes"), Out(length, "length");
    if (!t.IsValid(id)) Refuse("id is " + std::to_string(id) + ", outside the vocabulary");
    *bytes = t.TokenBytes(id).data();
    *length = t.TokenBytes(id).size();
    return {};
  });
}

int64_t dsv4_vocab_size(const dsv4_tokenizer* tokenizer) {
  return IsUsable(tokenizer) ? tokenizer->tokenizer->vocab_size() : -1;
}
int32_t dsv4_bos(const dsv4_tokenizer* tokenizer) {
  return IsUsable(tokenizer) ? tokenizer->tokenizer->bos_token_id() : -1;
}
int32_t dsv4_eos(const dsv4_tokenizer* tokenizer) {
  return IsUsable(tokenizer) ? tokenizer->tokenizer->eos_token_id() : -1;
}

dsv4_status dsv4_decoder_new(const dsv4_tokenizer* tokenizer, uint32_t flags, dsv4_decoder** decoder) {
  return Guard([&]() -> Status {
    const dsv4_tokenizer& t = Use(tokenizer, "tokenizer");
    Out(decoder, "decoder") = new dsv4_decoder(t.tokenizer, {.skip_special = (flags & DSV4_DECODE_NO_SPECIAL) != 0});
    return {};
  });
}

void dsv4_decoder_free(dsv4_decoder* decoder) { Free(decoder); }

dsv4_status dsv4_decoder_push(dsv4_decoder* decoder, int32_t id, char* text, size_t* length) {
  return Guard([&]() -> Status {
    StreamDecoder& own = Use(decoder, "decoder").decoder;
    StreamDecoder next = own;  // what does not fit changes nothing
    DSV4_ASSIGN_OR_RETURN(const std::string piece, next.Push(id));
    FillText(piece, text, length);
    own = std::move(next);
    return {};
  });
}

dsv4_status dsv4_decoder_finish(dsv4_decoder* decoder, char* text, size_t* length) {
  return Guard([&]() -> Status {
    StreamDecoder& own = Use(decoder, "decoder").decoder;
    StreamDecoder next = own;
    FillText(next.Finish(), text, length);
    own = std::move(next);
    return {};
  });
}

dsv4_status dsv4_render_chat(const char* request_json, size_t request_length, const char* model_dir, char* text,
                             size_t* length) {
  return Guard([&]() -> Status {
    DSV4_ASSIGN_OR_RETURN(const ChatRequest request,
                          ParseChatRequest(TextIn(request_json, request_length, "request_json")));
    const ChatDialect dialect = model_dir == nullptr ? ChatDialect::kV4Preview : DetectDialect(model_dir);
    DSV4_ASSIGN_OR_RETURN(const std::string prompt, RenderPrompt(request, dialect));
    FillText(prompt, text, length);
    return {};
  });
}

dsv4_status dsv4_parse_output(const char* text, size_t text_length, int thinking, char* message_json, size_t* length) {
  return Guard([&]() -> Status {
    const std::string json = MessageToJson(ParseOutput(TextIn(text, text_length, "text"), thinking != 0));
    FillText(json, message_json, length);
    return {};
  });
}

}  // extern "C"
