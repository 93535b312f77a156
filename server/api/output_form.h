// Reads from a request's fields which form its output must have, and makes grammars of it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/api/api.h"
#include "server/structured/grammar.h"

namespace dsv4::server {

struct OutputForm {
  Json format;        // of the content, in the form that GrammarCompiler takes; null: free text
  Json shown;         // the schema that the model gets to read; null: none
  std::string param;  // the field that set it
};

// Reads response_format and vLLM's structured_outputs and guided_*, for chats and completions.
OutputForm ReadResponseFormat(const Fields& body);
// Reads text.format of /v1/responses.
OutputForm ReadTextFormat(const Fields& body);
// Reads output_config.format or output_format of /v1/messages.
OutputForm ReadMessagesFormat(const Fields& body);

// The grammar that a request needs.
struct GrammarPlan {
  std::vector<std::string> formats;  // empty: no grammar; the second one is used if the first cannot be compiled
  std::string param;                 // the field that set it
  bool of_calls = false;             // it holds calls that the model begins by itself, not the content
  bool strict = true;                // false: without a grammar the request is served all the same
  std::vector<bool> exact = {};      // for each format: GenerationParams::exact_calls
};

// Plans the grammar for the form, the required calls of `params` and strict tools. Throws ApiError 400 if that cannot
// be done. `tools`: in OpenAI's form.
GrammarPlan PlanForm(const Api& api, const OutputForm& form, const Json& tools, GenerationParams* params);

// Returns true if the plan needs no compilation: it has no grammar, or one that is known, which it sets for all
// sequences of the job.
bool UseKnownForm(const Api& api, const GrammarPlan& plan, Job* job);

// Compiles the grammar on this thread and sets it for all sequences of the job. Throws ApiError.
void CompileForm(const Api& api, const GrammarPlan& plan, const CancelFlag& cancelled, Job* job);

// Compiles the grammar, sets it for all sequences of the job, and calls `run`. If the grammar is known, that happens at
// once; otherwise on a compile thread, which stops if the client leaves. Errors on that thread are answered in the
// route's form. Throws ApiError.
void RunWithGrammar(const Api& api, const ExchangePtr& exchange, ErrorForm form, GrammarPlan plan,
                    const std::shared_ptr<Job>& job, std::function<void()> run);

}  // namespace dsv4::server
