// The commands of the program, one file each. Every function adds its command to the program's parser; the
// command's callback does the work and throws Error when it fails.
#pragma once

namespace CLI {
class App;
}

namespace calla::cli {

void add_run(CLI::App& program);
void add_chat(CLI::App& program);
void add_info(CLI::App& program);
void add_tokenize(CLI::App& program);
void add_detokenize(CLI::App& program);
void add_render(CLI::App& program);

}  // namespace calla::cli
