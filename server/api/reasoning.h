// The fields of chats and responses about reasoning, in the forms of all services and engines that have some.
#pragma once

#include "server/api/api.h"

namespace dsv4::server {

// Reads whether the model reasons, and its effort. Writes the budget to `params`; a budget of 0 turns reasoning off.
// Throws ApiError 400.
Reasoning ReadReasoning(const Api& api, const Fields& fields, GenerationParams* params);

// Returns false if the prompt keeps the reasoning of earlier turns.
bool ReadDropThinking(const Fields& fields);

// The part of a reply that has its reasoning.
enum class ReasoningPlace : uint8_t { kField, kContent, kNowhere };

// Returns kNowhere or kField.
ReasoningPlace ReadIncludeReasoning(const Fields& fields);
// For chats, which have more fields for it. Throws ApiError 400 if two of them contradict each other.
ReasoningPlace ReadReasoningPlace(const Fields& fields);

}  // namespace dsv4::server
