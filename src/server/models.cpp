#include "server/models.h"

#include <string_view>

#include "server/errors.h"

namespace calla::server {
namespace {

/// The context's length stands under each of the names that clients look for.
Json model_json(const ServedModel& model) {
  const int context = model.chat->engine().context();
  return {{"id", model.id},
          {"object", "model"},
          {"created", model.created},
          {"owned_by", "calla"},
          {"context_length", context},
          {"max_model_len", context},
          {"context_window", context},
          {"max_context_length", context},
          {"meta", {{"n_ctx", context}, {"n_vocab", model.chat->tokenizer().size()}}}};
}

}  // namespace

void list_models(Call& call) {
  call.exchange.answer(json_response({{"object", "list"}, {"data", Json::array({model_json(call.model)})}}));
}

void describe_model(Call& call) {
  std::string_view id = call.request().path;
  id.remove_prefix(std::string_view("/v1/models/").size());
  if (id != call.model.id) {
    throw HttpError(404, {.message = "there is no model of this name; GET /v1/models names the one there is",
                          .type = "invalid_request_error",
                          .param = "model",
                          .code = "model_not_found"});
  }
  call.exchange.answer(json_response(model_json(call.model)));
}

}  // namespace calla::server
