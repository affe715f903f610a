// Reads the Metal kernels for the build:
//
//   kernel_tool bind KERNELS.metal INCLUDE_NAME OUTPUT.cpp   the kernels as C++ with what calls them, for the
//   simulator kernel_tool shape demo|qwen36_35b OUTPUT.h               the macros that kernels/shape.h reads
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "metal/shape_macros.h"
#include "model/shape.h"

namespace {

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + ": cannot be read");
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

void write(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) throw std::runtime_error(path + ": cannot be written");
}

/// The text with comments blanked out, so that places stay where they are.
std::string without_comments(std::string text) {
  enum class In { code, string, line_comment, block_comment } in = In::code;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string_view two = std::string_view(text).substr(i, 2);
    switch (in) {
      case In::code:
        if (text[i] == '"') in = In::string;
        if (two == "//") in = In::line_comment;
        if (two == "/*") in = In::block_comment;
        break;
      case In::string:
        if (text[i] == '\\') ++i;
        if (text[i] == '"') in = In::code;
        break;
      case In::line_comment:
        if (text[i] == '\n') in = In::code;
        break;
      case In::block_comment:
        if (two == "*/") {
          text[i] = text[i + 1] = ' ';
          in = In::code;
        }
        break;
    }
    if ((in == In::line_comment || in == In::block_comment) && text[i] != '\n') text[i] = ' ';
  }
  return text;
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// Where the word stands next, from `at` on.
std::size_t find_word(std::string_view text, std::string_view word, std::size_t at) {
  while ((at = text.find(word, at)) != std::string_view::npos) {
    const bool begins = at == 0 || !is_word(text[at - 1]);
    const bool ends = at + word.size() == text.size() || !is_word(text[at + word.size()]);
    if (begins && ends) return at;
    at += word.size();
  }
  return at;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

/// What stands between the bracket at `open` and the one that closes it, split at the commas outside all
/// brackets.
std::vector<std::string_view> list(std::string_view text, std::size_t open) {
  if (open == std::string_view::npos) throw std::runtime_error("a bracket is missing");
  std::vector<std::string_view> items;
  std::size_t begin = open + 1;
  int depth = 0;
  for (std::size_t i = open; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '(' || c == '[' || c == '{' || c == '<') ++depth;
    if (c == ')' || c == ']' || c == '}' || c == '>') --depth;
    if (depth == 0 || (depth == 1 && c == ',')) {
      if (const auto item = trimmed(text.substr(begin, i - begin)); !item.empty()) items.push_back(item);
      begin = i + 1;
    }
    if (depth == 0) return items;
  }
  throw std::runtime_error("a bracket is not closed");
}

struct Parameter {
  std::string attribute;  // as simulation::Attribute names it
  std::string slot = "0";
  std::string name;
};

struct Kernel {
  std::string function;
  bool is_template = false;
  std::vector<Parameter> parameters;
};

struct Instance {
  std::string name;
  std::string function;  // with its template's arguments
};

Parameter parse_parameter(std::string_view text) {
  const std::size_t open = text.rfind("[[");
  const std::size_t close = text.rfind("]]");
  if (open == std::string_view::npos || close == std::string_view::npos) {
    throw std::runtime_error("a kernel's parameter has no attribute: " + std::string(text));
  }
  Parameter parameter;
  std::string_view attribute = trimmed(text.substr(open + 2, close - open - 2));
  if (const std::size_t argument = attribute.find('('); argument != std::string_view::npos) {
    parameter.slot = list(attribute, argument).at(0);
    attribute = trimmed(attribute.substr(0, argument));
  }
  parameter.attribute = attribute;
  const std::string_view declaration = trimmed(text.substr(0, open));
  std::size_t begin = declaration.size();
  while (begin > 0 && is_word(declaration[begin - 1])) --begin;
  parameter.name = declaration.substr(begin);
  return parameter;
}

std::vector<Kernel> parse_kernels(std::string_view text) {
  std::vector<Kernel> kernels;
  for (std::size_t at = 0; (at = find_word(text, "kernel", at)) != std::string_view::npos;) {
    const std::size_t word = find_word(text, "void", at);
    if (word == std::string_view::npos || !trimmed(text.substr(at + 6, word - at - 6)).empty()) {
      throw std::runtime_error("`kernel` is not followed by `void`");
    }
    const std::size_t open = text.find('(', word);
    Kernel kernel;
    kernel.function = trimmed(text.substr(word + 4, open - word - 4));
    for (const std::string_view parameter : list(text, open))
      kernel.parameters.push_back(parse_parameter(parameter));
    // What stands between the last declaration's end and the kernel may be its template's head.
    const std::size_t before = text.find_last_of(";})", at);
    const std::size_t begin = before == std::string_view::npos ? 0 : before + 1;
    kernel.is_template = find_word(text.substr(begin, at - begin), "template", 0) != std::string_view::npos;
    kernels.push_back(std::move(kernel));
    at = open;
  }
  return kernels;
}

std::vector<Instance> parse_instances(std::string_view text, const std::vector<Kernel>& kernels) {
  std::vector<Instance> instances;
  for (const Kernel& kernel : kernels) {
    if (!kernel.is_template) instances.push_back({kernel.function, kernel.function});
  }
  for (std::size_t at = 0; (at = find_word(text, "INSTANTIATE", at)) != std::string_view::npos; ++at) {
    const auto items = list(text, text.find('(', at));
    if (items.size() != 2 || items[0].size() < 2) {
      throw std::runtime_error(
          "INSTANTIATE takes a name in quotes and a kernel's template with its arguments");
    }
    instances.push_back({std::string(items[0].substr(1, items[0].size() - 2)), std::string(items[1])});
  }
  return instances;
}

/// C++ that includes the kernels and registers them with the simulator. Everything is in an unnamed
/// namespace: kernel files and variants of them must not share a helper that happens to have the same name.
std::string bindings(const std::string& text, const std::string& include_name) {
  const std::string code = without_comments(text);
  const std::vector<Kernel> kernels = parse_kernels(code);
  std::ostringstream out;
  out << "// Made by kernel_tool.\n#include <metal_stdlib>\n\nnamespace {\n#include \"" << include_name
      << "\"\n\n";
  for (const Kernel& kernel : kernels) {
    out << "constexpr calla::metal::simulation::Bound bounds_of_" << kernel.function << "[] = {\n";
    for (const Parameter& parameter : kernel.parameters) {
      out << "    {calla::metal::simulation::Attribute::" << parameter.attribute << ", " << parameter.slot
          << ", \"" << parameter.name << "\"},\n";
    }
    out << "};\n";
  }
  int number = 0;
  for (const Instance& instance : parse_instances(code, kernels)) {
    const std::string function = instance.function.substr(0, instance.function.find('<'));
    bool known = false;
    for (const Kernel& kernel : kernels) known = known || kernel.function == function;
    if (!known) throw std::runtime_error("INSTANTIATE of what is no kernel: " + instance.function);
    out << "const calla::metal::simulation::Registration registration_" << number++
        << "(CALLA_SHAPE_NAME, calla::metal::simulation::Build::CALLA_BUILD, calla::metal::simulation::bind<"
        << instance.function << ", bounds_of_" << function << ">(\"" << instance.name << "\"));\n";
  }
  out << "}  // namespace\n";
  return std::move(out).str();
}

std::string macros(const std::string& name) {
  const calla::Shape shape = name == "demo"         ? calla::demo
                             : name == "qwen36_35b" ? calla::qwen36_35b
                                                    : throw std::runtime_error(name + ": not a shape");
  std::ostringstream out;
  out << "// Made by kernel_tool.\n#define CALLA_SHAPE_NAME \"" << name << "\"\n";
  for (const auto& macro : calla::metal::shape_macros(shape)) {
    out << "#define " << macro.name << ' ' << macro.value << '\n';
  }
  return std::move(out).str();
}

/// The text of a source with the text of what it includes in quotes in place of that, each file once; `root`
/// is where their names begin.
std::string flattened(const std::string& path, const std::string& root, std::set<std::string>& included) {
  std::istringstream lines(read(path));
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    const std::string_view code = trimmed(line);
    if (code.starts_with("#include \"")) {
      const std::string name(code.substr(10, code.rfind('"') - 10));
      if (included.insert(name).second)
        text += flattened((std::filesystem::path(root) / name).string(), root, included);
    } else if (code != "#pragma once") {
      text += line;
      text += '\n';
    }
  }
  return text;
}

/// C++ with the flattened text of each file of kernels.
std::string sources(const std::string& root, const std::vector<std::string>& paths) {
  const std::string definitions =
      "#define TG_ARRAY(type, name, count) threadgroup type name[count]\n"
      "#define INSTANTIATE(name, ...) template [[host_name(name)]] [[kernel]] decltype(__VA_ARGS__) "
      "__VA_ARGS__;\n";
  std::ostringstream out;
  out << "// Made by kernel_tool.\n#include \"metal/kernel_sources.h\"\n\nnamespace calla::metal "
         "{\nnamespace {\n\nusing namespace std::string_view_literals;\n\n"
      // A literal knows its length; Clang's constant evaluation would give up counting it.
      << "constexpr KernelSource sources[] = {\n";
  for (const std::string& path : paths) {
    const std::size_t begin = path.rfind('/') + 1;
    std::set<std::string> included;
    out << "{\"" << path.substr(begin, path.rfind('.') - begin) << "\"sv, R\"calla(" << definitions
        << flattened(path, root, included) << ")calla\"sv},\n";
  }
  out << "};\n}  // namespace\n\nstd::span<const KernelSource> kernel_sources() { return sources; }\n\n"
      << "}  // namespace calla::metal\n";
  return std::move(out).str();
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (arguments.size() == 4 && arguments[0] == "bind") {
      write(arguments[3], bindings(read(arguments[1]), arguments[2]));
    } else if (arguments.size() == 3 && arguments[0] == "shape") {
      write(arguments[2], macros(arguments[1]));
    } else if (arguments.size() > 3 && arguments[0] == "sources") {
      write(arguments[2], sources(arguments[1], {arguments.begin() + 3, arguments.end()}));
    } else {
      throw std::runtime_error("wrong arguments");
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "kernel_tool";
    for (const std::string& argument : arguments) std::cerr << ' ' << argument;
    std::cerr << ": " << error.what() << '\n';
    return 1;
  }
}
