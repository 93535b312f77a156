// What a request asks of the form of its output, read from its fields and made into grammars.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/api/api.h"

namespace dsv4::server {

struct OutputForm {
  Json format;        // of the content, as GrammarCompiler takes it; null: free text
  Json shown;         // the schema that the model is told; null: none
  std::string param;  // the field that asked for it
};

// response_format, and vLLM's structured_outputs and guided_*: chat and completions.
OutputForm ReadResponseFormat(const Fields& body);
// text.format of /v1/responses.
OutputForm ReadTextFormat(const Fields& body);
// output_config.format or output_format of /v1/messages.
OutputForm ReadMessagesFormat(const Fields& body);

// The grammar that a request needs.
struct GrammarPlan {
  std::vector<std::string> formats;  // none: no grammar; the second one stands in where the first cannot be compiled
  std::string param;                 // the field that asked for it
  bool of_calls = false;             // of calls that the model begins by itself, not of the content
};

// What the form, the required calls of `params` and strict tools ask for. Throws ApiError 400 where that cannot be
// done. `tools`: in OpenAI's form.
GrammarPlan PlanForm(const Api& api, const OutputForm& form, const Json& tools, GenerationParams* params);

// Compiles the grammar into all of the job's sequences and calls `run`: at once where it is known already, else on a
// thread for such work, which ends it when the client leaves. What goes wrong there is answered in the route's form.
// Throws ApiError.
void RunWithGrammar(const Api& api, const ExchangePtr& exchange, ErrorForm form, GrammarPlan plan,
                    const std::shared_ptr<Job>& job, std::function<void()> run);

}  // namespace dsv4::server
