// What a request asks of the form of its output, read from its fields and made into grammars.
#pragma once

#include <string>

#include "../api.h"

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

// Compiles what the form, the required calls of `params` and strict tools ask for into `params`. Throws ApiError 400
// where that cannot be done. `tools`: in OpenAI's form.
void ApplyForm(const Api& api, const OutputForm& form, const Json& tools, GenerationParams* params);

}  // namespace dsv4::server
