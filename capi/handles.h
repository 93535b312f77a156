// The objects of the C API's handles. Each keeps the objects that it uses; earlier members outlive later ones.
#pragma once

#include <memory>

#include "dsv4/engine.h"
#include "dsv4/sampling.h"
#include "dsv4/server.h"
#include "dsv4/service.h"
#include "dsv4/session.h"
#include "dsv4/snapshot.h"
#include "dsv4/tokenizer.h"
#include "guard.h"

struct dsv4_tokenizer : dsv4::capi::Handle {
  explicit dsv4_tokenizer(std::shared_ptr<const dsv4::Tokenizer> t) : tokenizer(std::move(t)) {}
  std::shared_ptr<const dsv4::Tokenizer> tokenizer;
};

struct dsv4_decoder : dsv4::capi::Handle {
  dsv4_decoder(std::shared_ptr<const dsv4::Tokenizer> t, const dsv4::DecodeOptions& options)
      : tokenizer(std::move(t)), decoder(*tokenizer, options) {}
  std::shared_ptr<const dsv4::Tokenizer> tokenizer;
  dsv4::StreamDecoder decoder;
};

struct dsv4_engine : dsv4::capi::Handle {
  explicit dsv4_engine(std::shared_ptr<dsv4::Engine> e) : engine(std::move(e)) {}
  std::shared_ptr<dsv4::Engine> engine;
};

struct dsv4_session : dsv4::capi::Handle {
  dsv4_session(std::shared_ptr<dsv4::Engine> e, std::unique_ptr<dsv4::Session> s)
      : engine(std::move(e)), session(std::move(s)) {}
  std::shared_ptr<dsv4::Engine> engine;
  std::unique_ptr<dsv4::Session> session;
};

struct dsv4_snapshot : dsv4::capi::Handle {
  dsv4_snapshot(std::shared_ptr<dsv4::Engine> e, std::shared_ptr<const dsv4::KvSnapshot> s)
      : engine(std::move(e)), snapshot(std::move(s)) {}
  std::shared_ptr<dsv4::Engine> engine;
  std::shared_ptr<const dsv4::KvSnapshot> snapshot;
};

struct dsv4_sampler : dsv4::capi::Handle {
  dsv4_sampler(std::unique_ptr<dsv4::Sampler> s, int64_t vocab, size_t top)
      : sampler(std::move(s)), vocab_size(vocab), num_top(top) {}
  std::unique_ptr<dsv4::Sampler> sampler;
  int64_t vocab_size;
  size_t num_top;
};

struct dsv4_service : dsv4::capi::Handle {
  std::shared_ptr<dsv4::Engine> engine;
  std::shared_ptr<const dsv4::Tokenizer> tokenizer;
  std::unique_ptr<dsv4::Service> service;
};

struct dsv4_server : dsv4::capi::Handle {
  std::shared_ptr<dsv4::Engine> engine;
  std::shared_ptr<const dsv4::Tokenizer> tokenizer;
  std::unique_ptr<dsv4::HttpServer> server;
};

namespace dsv4::capi {

// The C form of a drawn token. `top`: its storage.
dsv4_token TokenOf(const SampledToken& token, std::span<dsv4_logprob> top);

}  // namespace dsv4::capi
