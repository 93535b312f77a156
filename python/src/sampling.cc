#include "dsv4/sampling.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "errors.h"
#include "sampling.h"

namespace dsv4::python {

using nb::literals::operator""_a;

namespace {

struct PySampler {
  std::unique_ptr<Sampler> sampler;
  int64_t vocab_size;
};

nb::object Sample(PySampler& self, nb::handle logits) {
  nb::ndarray<const float, nb::c_contig, nb::device::cpu> row;
  if (!nb::try_cast(logits, row)) throw nb::type_error("logits must be an array of float32 on the CPU");
  const SampledToken token = Must(self.sampler->Sample(std::span(row.data(), row.size())));
  nb::list top;
  for (const TokenLogprob& t : token.top) top.append(nb::make_tuple(t.id, t.logprob));
  return nb::module_::import_("dsv4._outputs").attr("TokenLogprob")(token.id, token.logprob, top);
}

nb::dict DefaultSampling(const std::string& folder) {
  const SamplingParams params = Must(ReadDefaultSampling(folder));
  nb::dict dict;
  dict["temperature"] = params.temperature;
  dict["top_k"] = params.top_k;
  dict["top_p"] = params.top_p;
  dict["min_p"] = params.min_p;
  dict["repetition_penalty"] = params.repeat_penalty;
  return dict;
}

}  // namespace

SamplingParams ToSampling(const nb::dict& fields) {
  SamplingParams sampling;
  Take(fields, "temperature", &sampling.temperature);
  Take(fields, "top_k", &sampling.top_k);
  Take(fields, "top_p", &sampling.top_p);
  Take(fields, "min_p", &sampling.min_p);
  Take(fields, "repeat_penalty", &sampling.repeat_penalty);
  Take(fields, "presence_penalty", &sampling.presence_penalty);
  Take(fields, "frequency_penalty", &sampling.frequency_penalty);
  Take(fields, "logit_bias", &sampling.logit_bias);
  Take(fields, "top_logprobs", &sampling.top_logprobs);
  if (fields.contains("seed")) Take(fields, "seed", &sampling.seed.emplace());
  return sampling;
}

void BindSampling(nb::module_& m) {
  nb::class_<PySampler>(m, "Sampler",
                        "Draws the tokens of one reply from logits. It has the random state and the counts for "
                        "penalties.")
      .def(
          "__init__",
          [](PySampler* self, nb::handle params, int64_t vocab_size) {
            const SamplingParams sampling = ToSampling(nb::cast<nb::dict>(params.attr("request")()));
            new (self) PySampler{Must(Sampler::Create(sampling, vocab_size)), vocab_size};
          },
          "params"_a, "vocab_size"_a,
          nb::sig("def __init__(self, params: dsv4._params.SamplingParams, vocab_size: int) -> None"),
          "params: max_tokens and the stops have no effect. vocab_size: as Engine.vocab_size. Error: "
          "InvalidArgumentError, which names the field.")
      .def(
          "add_prompt", [](PySampler& self, nb::handle ids) { self.sampler->AddPrompt(ToIds(ids)); }, "ids"_a,
          nb::sig("def add_prompt(self, ids: collections.abc.Sequence[int] | typing.Any) -> None"),
          "Adds tokens of the prompt, for the repetition penalty.")
      .def(
          "sample", &Sample, "logits"_a, nb::sig("def sample(self, logits: typing.Any) -> dsv4._outputs.TokenLogprob"),
          "Draws the next token from float32 [vocab_size] or [1, vocab_size] and counts it. The log-probability is set "
          "with SamplingParams.logprobs. Errors: InvalidArgumentError (the number of logits; every token is banned), "
          "InternalError (NaN).")
      .def_prop_ro(
          "seed", [](const PySampler& self) { return self.sampler->seed(); },
          "The seed: that of the parameters, or the one that was drawn.");
  m.def("_default_sampling", &DefaultSampling, "folder"_a,
        nb::sig("def _default_sampling(folder: str) -> dict[str, typing.Any]"));
}

}  // namespace dsv4::python
