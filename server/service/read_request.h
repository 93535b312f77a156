// Requests of a service, as jobs of the scheduler.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "dsv4/service.h"
#include "server/api/api.h"
#include "server/api/output_form.h"

namespace dsv4::server {

struct ServiceJob {
  std::shared_ptr<Job> job;  // one sequence
  GrammarPlan plan;
};

// Throws ApiError: 400 (names the field), 501.
ServiceJob MakeJob(const Api& api, Request request);

// Reads the body of /v1/chat/completions or /v1/completions. Throws ApiError.
ServiceJob ReadJob(const Api& api, std::string_view body, const std::string& tenant);

}  // namespace dsv4::server
