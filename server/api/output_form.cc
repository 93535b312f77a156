#include "server/api/output_form.h"

#include <algorithm>
#include <utility>

#include "server/structured/compile_queue.h"
#include "server/structured/formats.h"
#include "server/structured/grammar.h"
#include "server/structured/schema.h"
#include "server/structured/signatures.h"
#include "server/structured/structural_tag.h"

namespace dsv4::server {

namespace {

constexpr size_t kMaxFormat = size_t{1} << 20;   // bytes of all schemas in a request
constexpr size_t kMaxGuide = size_t{256} << 10;  // of tools whose calls need not follow a grammar
constexpr double kGuideSeconds = 2;              // to compile one for them

void CheckSize(size_t bytes, const std::string& what, const std::string& param) {
  if (bytes <= kMaxFormat) return;
  Refuse(param,
         param + ": " + what + " of " + std::to_string(bytes) + " bytes; the limit is " + std::to_string(kMaxFormat));
}
void CheckSchemaSize(const Json& schema, const std::string& param) { CheckSize(DumpSize(schema), "schemas", param); }

std::string FormatText(const Json& format, const std::string& param) {
  std::string text = Dump(format);
  CheckSize(text.size(), "schemas", param);
  return text;
}

const Json& SchemaOf(const Fields& fields, const char* name) {
  const Json* schema = fields.Get(name);
  if (schema == nullptr) Refuse(fields.Path(name), fields.Path(name) + " is missing");
  if (!schema->is_object() && !schema->is_boolean()) {
    Refuse(fields.Path(name), fields.Path(name) + " must be a JSON schema: an object");
  }
  CheckSchemaSize(*schema, fields.Path(name));  // before it is copied and paths are built
  return *schema;
}

// Reads {type, schema, strict}: the members of json_schema in all APIs.
OutputForm ReadSchema(const Fields& fields, const std::string& param, bool always_strict) {
  const Json& schema = SchemaOf(fields, "schema");
  if (always_strict || fields.Bool("strict").value_or(false)) {
    CheckSchema(schema, fields.Path("schema"));
    CheckPatterns(schema, fields.Path("schema"));
  }
  return {.format = JsonFormat(schema), .shown = schema, .param = param};
}

// Reads {type: json_object}, which some engines take with a schema.
OutputForm ReadObject(const Fields& fields, const std::string& param) {
  const Json* schema = fields.Get("schema");
  if (schema == nullptr || schema->empty()) return {.format = AnyObjectFormat(), .shown = {}, .param = param};
  return ReadSchema(fields, param, false);
}

void CheckStrictTool(const Json& tool) {
  const Json& function = tool["function"];
  if (!IsStrict(tool) || !function.contains("parameters")) return;
  const std::string path = "tools." + function["name"].get<std::string>() + ".parameters";
  CheckSchemaSize(function["parameters"], path);
  CheckSchema(function["parameters"], path);
  CheckCallPatterns(function["parameters"], path);
}

Json Literal(const Json& text) { return {{"type", "const_string"}, {"value", text}}; }

Json ChoiceFormat(const Json& choices, const std::string& param) {
  if (choices.empty()) Refuse(param, param + " is an empty list of choices");
  for (const Json& choice : choices) {
    if (!choice.is_string() || choice.get_ref<const std::string&>().empty())
      Refuse(param, param + ": expected strings");
  }
  // The size of the list already includes a comma per choice and a bracket. A million choices would take 500 MB.
  const size_t around = DumpSize(Literal("")) - 2;
  CheckSize(DumpSize(choices) - 1 + choices.size() * around, std::to_string(choices.size()) + " choices, a grammar",
            param);
  Json elements = Json::array();
  for (const Json& choice : choices) elements.push_back(Literal(choice));
  return {{"type", "or"}, {"elements", std::move(elements)}};
}

// Calls `read` with the value of a field that may be JSON or its text. Does not copy JSON, which may be large.
template <typename Read>
void ReadJsonOrText(const Fields& fields, const char* name, const Read& read) {
  const Json* value = fields.Get(name);
  if (value == nullptr || *value == "") return;
  const std::string param = fields.Path(name);
  if (!value->is_string()) return read(*value, param);
  const auto parse = [&] {
    try {
      return ParseJson(value->get_ref<const std::string&>());
    } catch (const ApiError& error) {
      Refuse(param, param + " is a text that cannot be read as JSON: " + error.what());
    }
  };
  read(parse().root(), param);
}

// Collects the form from all fields that may set it. A request may send one of them.
class FormReader {
 public:
  void Set(const std::string& param, Json format, Json shown = {}) {
    if (!form_.format.is_null()) {
      Refuse(param, param + " and " + form_.param + " both set the form of the output; send only one of them");
    }
    form_ = {.format = std::move(format), .shown = std::move(shown), .param = param};
  }

  void Schema(const Fields& fields, const char* name) {
    ReadJsonOrText(fields, name, [&](const Json& schema, const std::string& param) {
      CheckSchemaSize(schema, param);
      Set(param, JsonFormat(schema));
    });
  }
  // `type` and `member`: the format that takes the text.
  void Text(const Fields& fields, const char* name, const char* type, const char* member) {
    const auto text = fields.Text(name);
    if (text && !text->empty()) Set(fields.Path(name), {{"type", type}, {member, *text}});
  }
  void Tag(const Fields& fields, const char* name) {
    ReadJsonOrText(fields, name, [&](const Json& tag, const std::string& param) {
      CheckSchemaSize(tag, param);
      Set(param, TagFormat(tag, param));
    });
  }
  void Choice(const Fields& fields, const char* name) {
    if (const Json* choices = fields.Array(name)) Set(fields.Path(name), ChoiceFormat(*choices, fields.Path(name)));
  }
  void AnyObject(const Fields& fields, const char* name) {
    if (fields.Bool(name).value_or(false)) Set(fields.Path(name), AnyObjectFormat());
  }

  OutputForm Finish() { return std::move(form_); }

 private:
  OutputForm form_;
};

// vLLM's object of forms.
void ReadStructuredOutputs(const Fields& in, FormReader* form) {
  form->Schema(in, "json");
  form->AnyObject(in, "json_object");
  form->Text(in, "regex", "regex", "pattern");
  form->Text(in, "grammar", "grammar", "grammar");
  form->Choice(in, "choice");
  form->Tag(in, "structural_tag");
  for (const char* name : {"whitespace_pattern", "disable_any_whitespace", "disable_additional_properties"})
    in.RefuseUnlessEmpty(name, "white space in JSON has a bound, and schemas decide about additional properties");
}

// Fields of bodies: vLLM's older fields, and the fields of SGLang and llama.cpp.
void ReadGuides(const Fields& body, FormReader* form) {
  form->Schema(body, "guided_json");
  form->AnyObject(body, "guided_json_object");
  form->Text(body, "guided_regex", "regex", "pattern");
  form->Text(body, "guided_grammar", "grammar", "grammar");
  form->Choice(body, "guided_choice");
  form->Schema(body, "json_schema");
  form->Text(body, "regex", "regex", "pattern");
  form->Text(body, "ebnf", "grammar", "grammar");
  form->Text(body, "grammar", "grammar", "grammar");
  form->Tag(body, "structural_tag");
}

// Follows all schemas. If that cannot be compiled, follows only those of strict tools.
template <typename MakeFormat>
GrammarPlan PlanCalls(const MakeFormat& make, const Json& tools, const std::string& param) {
  GrammarPlan plan{.formats = {FormatText(make(true), param)}, .param = param, .exact = {AreExact(tools, true)}};
  if (std::string lenient = FormatText(make(false), param); lenient != plan.formats[0]) {
    plan.formats.push_back(std::move(lenient));
    plan.exact.push_back(AreExact(tools, false));
  }
  return plan;
}

// For calls that the model begins by itself.
GrammarPlan HoldCalls(const Json& tools, GenerationParams* params) {
  GrammarPlan plan = PlanCalls([&](bool all) { return CallsFormat(kCallsBegin, tools, params->parallel_calls, all); },
                               tools, "tools");
  plan.of_calls = true;
  params->strict_calls = true;
  return plan;
}

bool HasSchema(const Json& tool) {
  const Json& function = tool["function"];
  const auto parameters = function.find("parameters");
  return parameters != function.end() && parameters->is_object() && !parameters->empty();
}

// The same for tools that are not strict: their calls follow the schemas if a grammar can be made of them. A tool
// without a schema takes any arguments.
GrammarPlan GuideCalls(Json tools, bool parallel) {
  if (std::none_of(tools.begin(), tools.end(), HasSchema) || DumpSize(tools) > kMaxGuide) return {};
  for (Json& tool : tools) {
    if (!HasSchema(tool)) tool["function"]["parameters"] = {{"type", "object"}};
  }
  return {.formats = {Dump(CallsFormat(kCallsBegin, tools, parallel, true))},
          .param = "tools",
          .of_calls = true,
          .strict = false,
          .exact = {AreExact(tools, true)}};
}

// Returns the named tools, or all tools if no name is given.
Json OfNames(const Json& tools, const std::vector<std::string>& names) {
  if (names.empty()) return tools;
  Json some = Json::array();
  for (const Json& tool : tools) {
    const auto& name = tool["function"]["name"].get_ref<const std::string&>();
    if (std::find(names.begin(), names.end(), name) != names.end()) some.push_back(tool);
  }
  return some;
}

void SetGrammar(const GrammarPlan& plan, size_t format, const std::shared_ptr<const Grammar>& grammar, Job* job) {
  for (SequenceSpec& sequence : job->sequences) {
    (plan.of_calls ? sequence.params->call_grammar : sequence.params->content_grammar) = grammar;
    sequence.params->exact_calls = format < plan.exact.size() && plan.exact[format];
  }
}

}  // namespace

OutputForm ReadResponseFormat(const Fields& body) {
  FormReader form;
  if (const Json* given = body.Object("response_format")) {
    const Fields format(*given, "response_format");
    const std::string type = format.Text("type").value_or("");
    if (type == "json_object") {
      OutputForm object = ReadObject(format, "response_format");
      form.Set(object.param, std::move(object.format), std::move(object.shown));
    } else if (type == "json_schema") {
      const Json* inner = format.Object("json_schema");
      if (inner == nullptr) Refuse("response_format.json_schema", "response_format.json_schema is missing");
      const Fields in(*inner, "response_format.json_schema");
      OutputForm schema = ReadSchema(in, "response_format", false);
      form.Set(schema.param, std::move(schema.format), std::move(schema.shown));
    } else if (type == "structural_tag") {
      CheckSchemaSize(*given, "response_format");
      form.Set("response_format", TagFormat(*given, "response_format"));
    } else if (type != "text") {
      Refuse("response_format.type",
             "response_format.type is \"" + type + "\"; expected text, json_object, json_schema or structural_tag");
    }
  }
  if (const Json* nested = body.Object("structured_outputs"))
    ReadStructuredOutputs(Fields(*nested, "structured_outputs"), &form);
  ReadGuides(body, &form);
  return form.Finish();
}

OutputForm ReadTextFormat(const Fields& body) {
  const Json* text = body.Object("text");
  const Json* given = text == nullptr ? nullptr : Fields(*text, "text").Object("format");
  if (given == nullptr) return {};
  const Fields format(*given, "text.format");
  const std::string type = format.Text("type").value_or("text");
  if (type == "json_object") return ReadObject(format, "text.format");
  if (type == "json_schema") return ReadSchema(format, "text.format", false);
  if (type != "text") {
    Refuse("text.format.type", "text.format.type is \"" + type + "\"; expected text, json_object or json_schema");
  }
  return {};
}

OutputForm ReadMessagesFormat(const Fields& body) {
  OutputForm form;
  const auto read = [&](const Json* given, const std::string& path) {
    if (given == nullptr) return;
    const Fields format(*given, path);
    const std::string type = format.Text("type").value_or("");
    if (type != "json_schema") Refuse(path + ".type", path + ".type is \"" + type + "\"; expected json_schema");
    form = ReadSchema(format, path, true);
  };
  read(body.Object("output_format"), "output_format");
  if (const Json* config = body.Object("output_config")) {
    read(Fields(*config, "output_config").Object("format"), "output_config.format");
  }
  return form;
}

GrammarPlan PlanForm(const Api& api, const OutputForm& form, const Json& all_tools, GenerationParams* params) {
  if (params->calls_allowed && !all_tools.empty()) params->signatures = SignaturesOf(all_tools);
  const Json tools = OfNames(all_tools, params->allowed_calls);
  const bool formed = !form.format.is_null();
  if (formed && api.grammars == nullptr) {
    Refuse(form.param, form.param +
                           " needs structured output, which this build does not have: run scripts/setup to "
                           "install XGrammar, and build again");
  }
  if (api.grammars == nullptr) return {};
  const bool parallel = params->parallel_calls;
  if (!params->required_calls.empty()) {
    const auto& names = params->required_calls;
    Json required = Json::array();
    for (const Json& tool : tools) {
      const auto& name = tool["function"]["name"].get_ref<const std::string&>();
      if (std::find(names.begin(), names.end(), name) == names.end()) continue;
      CheckStrictTool(tool);
      required.push_back(tool);
    }
    return PlanCalls([&](bool all) { return CallsFormat(std::string("\n\n") + kCallsBegin, required, parallel, all); },
                     required, "tools");
  }
  const bool may_call = params->calls_allowed && !tools.empty();
  const bool some = tools.size() < all_tools.size();
  if (some && !formed) return HoldCalls(tools, params);
  const bool strict = may_call && std::any_of(tools.begin(), tools.end(), IsStrict);
  if (formed) {
    params->plain_content = true;
    if (!may_call) return {.formats = {FormatText(form.format, form.param)}, .param = form.param};
    const auto either = [&](bool all) {
      return Json({{"type", "or"},
                   {"elements",
                    Json::array({form.format, CallsFormat(std::string("\n\n") + kCallsBegin, tools, parallel, all)})}});
    };
    return PlanCalls(either, tools, form.param);
  }
  if (strict) {
    for (const Json& tool : tools) CheckStrictTool(tool);
    return HoldCalls(tools, params);
  }
  return may_call ? GuideCalls(tools, parallel) : GrammarPlan();
}

bool UseKnownForm(const Api& api, const GrammarPlan& plan, Job* job) {
  if (plan.formats.empty()) return true;
  const auto known = api.grammars->Find(plan.formats[0]);
  if (known == nullptr) return false;
  SetGrammar(plan, 0, known, job);
  return true;
}

void CompileForm(const Api& api, const GrammarPlan& plan, const CancelFlag& cancelled, Job* job) {
  Status status;
  for (size_t i = 0; i < plan.formats.size(); ++i) {
    auto grammar = api.grammars->Compile(plan.formats[i], cancelled, plan.strict ? 0 : kGuideSeconds);
    if (grammar.ok()) return SetGrammar(plan, i, *grammar, job);
    status = grammar.status();
    if (status.code() != StatusCode::kInvalidArgument) break;
  }
  if (status.code() == StatusCode::kCancelled) throw ApiError(503, "the request was cancelled");
  if (!plan.strict) return;
  if (status.code() == StatusCode::kResourceExhausted) throw ApiError(503, status.message());
  Refuse(plan.param, plan.param + " cannot be made into a grammar: " + status.message());
}

void RunWithGrammar(const Api& api, const ExchangePtr& exchange, ErrorForm form, GrammarPlan plan,
                    const std::shared_ptr<Job>& job, std::function<void()> run) {
  if (UseKnownForm(api, plan, job.get())) return run();
  const auto cancelled = std::make_shared<std::atomic<bool>>(false);
  if (api.compile_queue == nullptr) {
    CompileForm(api, plan, cancelled, job.get());
    return run();
  }
  exchange->OnClose([cancelled] { *cancelled = true; });
  const bool strict = plan.strict;
  const auto compile = [&api, exchange, form, plan = std::move(plan), job, run, cancelled] {
    try {
      CompileForm(api, plan, cancelled, job.get());
      run();
    } catch (const ApiError& error) {
      RespondError(*exchange, form, error);
    } catch (const std::exception& error) {
      RespondError(*exchange, form, ApiError(500, std::string("internal error: ") + error.what()));
    }
  };
  if (!api.compile_queue->Post(compile, cancelled)) {
    if (!strict) return run();
    ApiError error(429, "too many grammars wait to be compiled; try again");
    error.retry_after_s = 2;
    throw error;
  }
}

}  // namespace dsv4::server
