#include "checkpoint/directory.h"

#include <system_error>

#include "base/error.h"
#include "checkpoint/fault_list.h"

namespace calla {
namespace fs = std::filesystem;

namespace {
bool holds_gguf_only(const fs::path& directory) {
  bool gguf = false;
  std::error_code fault;
  for (fs::directory_iterator it(directory, fault), end; !fault && it != end; it.increment(fault)) {
    const fs::path extension = it->path().extension();
    if (extension == ".safetensors") return false;
    gguf = gguf || extension == ".gguf";
  }
  if (fault) throw Error(directory.string(), "cannot be listed: " + fault.message());
  return gguf;
}
}  // namespace

void check_model_directory(const fs::path& path) {
  std::error_code fault;
  const fs::file_status status = fs::status(path, fault);
  if (status.type() == fs::file_type::not_found) {
    throw Error(path.string(), "no such directory", "give the directory of the checkpoint");
  }
  if (status.type() == fs::file_type::none)
    throw Error(path.string(), "cannot be examined: " + fault.message());
  if (!fs::is_directory(status)) {
    if (path.extension() == ".gguf") throw Error(path.string(), "is a GGUF file", wanted_checkpoint);
    throw Error(path.string(), "is a file, not a directory",
                "give the directory that holds config.json and the weights");
  }
  if (holds_gguf_only(path)) throw Error(path.string(), "holds GGUF files only", wanted_checkpoint);
  if (!fs::exists(path / "config.json", fault)) {
    throw Error(path.string(), "has no config.json", "give the directory of a whole checkpoint");
  }
}

}  // namespace calla
